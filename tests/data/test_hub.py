"""Data sets in the hub's layout: which files hold a split, and which are downloaded."""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo_lit.data.hub import HubError, choose_files
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
        # DAPO-Math-17k: one file that names no split.
        (["data/dapo-math-17k.parquet", "README.md"], None, "train", ["data/dapo-math-17k.parquet"]),
        # Shards, in order.
        (["train-1.parquet", "train-0.parquet"], None, "train", ["train-0.parquet", "train-1.parquet"]),
        # The automatic conversion: configuration, then split as a folder.
        (["default/train/0000.parquet", "default/test/0000.parquet"], None, "test", ["default/test/0000.parquet"]),
        # The hub's synonyms, and a split of one's own.
        (["dev.csv", "train.csv"], None, "validation", ["dev.csv"]),
        (["hard.jsonl", "easy.jsonl"], None, "hard", ["hard.jsonl"]),
        # Leftovers of editors and of git are no data.
        (["train.jsonl", ".ipynb_checkpoints/train-checkpoint.jsonl"], None, "train", ["train.jsonl"]),
    ],
)
def test_the_files_of_a_split_are_found_by_their_paths(names, config, split, chosen):
    assert choose_files(names, config, split) == chosen


@pytest.mark.parametrize(
    ("names", "config", "split", "there"),
    [
        (["en/train.csv", "zh/train.csv"], None, "train", "en, zh"),
        (GSM8K, "mian", "train", "main, socratic"),
        (GSM8K, "main", "validation", "test, train"),
        (["train.zip", "README.md"], None, "train", ".jsonl, .parquet, .csv, .arrow"),
    ],
)
def test_a_split_that_is_not_there_is_refused_with_what_is_there(names, config, split, there):
    with pytest.raises(ValueError, match=there):
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


def test_a_local_folder_is_read_as_the_data_set_on_the_hub_would_be(gsm8k_folder):
    (problem,) = load_problems(str(gsm8k_folder / "socratic"), split="train")
    assert (problem.id, problem.answer) == ("socratic-train-0", "72")
    (problem,) = load_problems(str(gsm8k_folder), split="test")
    assert (problem.id, problem.answer) == ("gsm8k-test-0", "18")


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
    assert [p.answer for p in load_heldout(str(folder))] == ["3"]


def test_of_a_hub_id_only_the_files_of_its_split_and_configuration_are_downloaded(gsm8k_folder, tmp_path, monkeypatch):
    """The hub's client is replaced: its protocol and its cache are its own."""
    fetched: list[tuple[str, str | None]] = []

    def snapshot(repo: str, *, repo_type: str, revision: str | None, allow_patterns: list[str]) -> Path:
        if repo != "acme/gsm8k":
            raise OSError("no such data set")
        for file in filter(Path.is_file, gsm8k_folder.rglob("*")):
            name = file.relative_to(gsm8k_folder)
            if any(fnmatch(str(name), pattern) for pattern in allow_patterns):
                fetched.append((str(name), revision))
                (tmp_path / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, tmp_path / "cache" / name)
        return tmp_path / "cache"

    monkeypatch.setattr("dapo_lit.data.hub.snapshot_download", snapshot)
    (train,) = load_problems("acme/gsm8k:main@abc", split="train")
    (test,) = load_problems("acme/gsm8k:socratic:test", split="train")  # the split in the id goes first
    assert [(p.id, p.answer) for p in (train, test)] == [("gsm8k-train-0", "72"), ("gsm8k-test-0", "18")]
    assert fetched == [("main/train-00000-of-00001.parquet", "abc"), ("socratic/test.jsonl", None)]
    with pytest.raises(HubError, match="acme/nothing"):
        load_problems("acme/nothing", split="train")
