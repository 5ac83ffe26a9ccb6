"""Data sets in the hub's layout: which files hold a split, and a download from a server with the hub's routes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_server import Handler, serving

from dapo_lit.data.hub import choose_files
from dapo_lit.data.sources import DataError, load_heldout, load_problems

GSM8K = [
    "README.md",
    "main/test-00000-of-00001.parquet",
    "main/train-00000-of-00001.parquet",
    "socratic/test-00000-of-00001.parquet",
    "socratic/train-00000-of-00001.parquet",
]


@pytest.mark.parametrize(
    ("names", "config", "split", "chosen"),
    [
        (GSM8K, "main", "train", ["main/train-00000-of-00001.parquet"]),
        (GSM8K, None, "test", ["main/test-00000-of-00001.parquet"]),
        # DAPO-Math-17k: one file that names no split.
        (["data/dapo-math-17k.parquet", "README.md"], None, "train", ["data/dapo-math-17k.parquet"]),
        # Shards, in order.
        (
            ["data/train-1.parquet", "data/train-0.parquet"],
            None,
            "train",
            ["data/train-0.parquet", "data/train-1.parquet"],
        ),
        # The automatic conversion: configuration, then split as a folder.
        (["default/train/0000.parquet", "default/test/0000.parquet"], None, "test", ["default/test/0000.parquet"]),
        # The hub's synonyms, and a split of one's own.
        (["dev.csv", "train.csv"], None, "validation", ["dev.csv"]),
        (["hard.jsonl", "easy.jsonl"], None, "hard", ["hard.jsonl"]),
        # A folder's name does not outweigh the file's.
        (["training_data/test.jsonl", "training_data/train.jsonl"], None, "train", ["training_data/train.jsonl"]),
        # Leftovers of editors and of git are no data.
        (["train.jsonl", ".ipynb_checkpoints/train-checkpoint.jsonl"], None, "train", ["train.jsonl"]),
    ],
)
def test_the_files_of_a_split_are_found_by_their_paths(names, config, split, chosen):
    assert choose_files(names, config, split) == chosen


@pytest.mark.parametrize(
    ("names", "config", "split", "reason"),
    [
        (["en/train.csv", "zh/train.csv"], None, "train", "configurations en, zh; add one to the hub id"),
        (GSM8K, "mian", "train", "no configuration 'mian'; it has main, socratic"),
        (GSM8K, "main", "validation", "no split 'validation'; it has test, train"),
        (["train.zip", "README.md"], None, "train", "holds no .jsonl, .parquet, .csv, .arrow file"),
    ],
)
def test_a_split_that_is_not_there_is_refused_with_what_is_there(names, config, split, reason):
    with pytest.raises(ValueError, match=reason):
        choose_files(names, config, split)


@pytest.fixture
def gsm8k_folder(tmp_path: Path) -> Path:
    """GSM8K's layout and columns with one row a split, the second configuration as JSONL."""
    folder = tmp_path / "gsm8k"
    for split, answer in (("train", 72), ("test", 18)):
        row = {"question": f"What is {answer - 1} + 1?", "answer": f"It is {answer}.\n#### {answer}"}
        (folder / "main").mkdir(parents=True, exist_ok=True)
        (folder / "socratic").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row]), folder / "main" / f"{split}-00000-of-00001.parquet")
        (folder / "socratic" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "README.md").write_text("# GSM8K\n")
    return folder


@pytest.mark.parametrize(
    ("part", "split", "expected"),
    [
        ("main", "train", ("main-train-0", "72")),
        ("socratic", "test", ("socratic-test-0", "18")),
        ("", "test", ("gsm8k-test-0", "18")),
    ],
)
def test_a_local_folder_is_read_as_the_data_set_on_the_hub_would_be(gsm8k_folder, part, split, expected):
    (problem,) = load_problems(str(gsm8k_folder / part), split=split)
    assert (problem.id, problem.answer) == expected
    with pytest.raises(DataError, match="'validation'"):
        load_problems(str(gsm8k_folder / part), split="validation")


def test_problems_to_evaluate_on_are_those_of_test_or_else_of_validation_and_never_those_of_train(
    gsm8k_folder, tmp_path
):
    assert [p.answer for p in load_heldout(str(gsm8k_folder / "main"))] == ["18"]
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    with pytest.raises(DataError, match="'test'"):
        load_heldout(str(folder))
    (folder / "dev.jsonl").write_text('{"problem": "1 + 2", "answer": "3"}\n')
    assert [(p.id, p.answer) for p in load_heldout(str(folder))] == [("other-validation-0", "3")]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(gsm8k_folder: Path):
    """A server with the routes of the hub that a download takes, and the paths it was asked for."""
    asked: list[str] = []
    contents = {f.relative_to(gsm8k_folder).as_posix(): f.read_bytes() for f in gsm8k_folder.rglob("*") if f.is_file()}

    class Hub(Handler):
        def get(self, path: str) -> None:
            asked.append(path)
            headers = {"X_Repo_Commit": COMMIT}
            if path.startswith("/api/datasets/acme/gsm8k/revision/"):
                body = json.dumps({"id": "acme/gsm8k", "sha": COMMIT, "siblings": []}).encode()
            elif path.startswith("/api/datasets/acme/gsm8k/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in contents.items()
                ]
                body = json.dumps(entries).encode()
            elif path.startswith(prefix := f"/datasets/acme/gsm8k/resolve/{COMMIT}/"):
                body = contents[path.removeprefix(prefix)]
                headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            else:
                return self.answer(b"", 404, X_Error_Code="RepoNotFound")
            return self.answer(body, **headers)

    with serving(Hub) as url:
        yield url, asked


def load_in_a_process(home: Path, *calls: tuple[str, str], **environment: str) -> list[list[list[str]] | str]:
    """(id, answer) of the problems of each (path, split), or the message of the DataError."""
    # The hub's client reads its settings once, at import: hence a process of its own.
    script = """
import json, sys
from dapo_lit.data.sources import load_problems
from dapo_lit.errors import UserError
for path, split in json.loads(sys.argv[1]):
    try:
        print(json.dumps([[p.id, p.answer] for p in load_problems(path, split=split)]))
    except UserError as error:
        print(json.dumps(str(error)))
"""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    result = subprocess.run(
        [sys.executable, "-c", script, json.dumps(calls)],
        env={**kept, "HF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_hub_id_is_downloaded_once_and_read_from_the_cache_without_a_network(hub, tmp_path):
    endpoint, asked = hub
    home = tmp_path / "home"
    train, test, unknown = load_in_a_process(
        home,
        ("acme/gsm8k:main", "train"),
        ("acme/gsm8k:socratic:test", "train"),
        ("acme/nothing", "train"),
        HF_ENDPOINT=endpoint,
    )
    assert test == [["gsm8k-test-0", "18"]], "the split in the id goes before the argument"
    assert train == [["gsm8k-train-0", "72"]]
    assert "acme/nothing: " in unknown
    assert "RepositoryNotFoundError" in unknown
    fetched = {path.rpartition(COMMIT + "/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {"main/train-00000-of-00001.parquet", "socratic/test.jsonl"}, (
        "other splits and configurations are not fetched"
    )

    again, other = load_in_a_process(
        home, (f"acme/gsm8k:main@{COMMIT}", "train"), ("acme/other", "train"), HF_HUB_OFFLINE="1"
    )
    assert again == train
    assert "acme/other: " in other
    assert "LocalEntryNotFoundError" in other
    assert "task.path" in other
