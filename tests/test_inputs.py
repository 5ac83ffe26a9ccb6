"""What a run read is compared by content: each file that a config names is edited, and resume, fork, replay,
checkpoint and report object; what an older run did not record is unknown."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations.files.record import read_record
from ablations.inputs import differing, recorded
from ablations.read import guard
from ablations.read.run import StudyError
from ablations.read.runs import Runs, load, read_run
from dapo_lit.build.components import RunComponents
from dapo_lit.cli import same_inputs
from dapo_lit.cli.same_inputs import check_same_inputs, prompt_day
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.study import Fork
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.runs.run_folder import run_path
from dapo_lit.train import train
from dapo_lit_tools.replays.recorded_step import open_recording

REWARD = """
def score(prompts, completions, answer, **columns):
    return [float(right in text) for text, right in zip(completions, answer)]
"""
TEMPLATE = "answer_format: none\nmessages:\n  - {role: user, content: '{problem}'}\n"
DATED = "{{ strftime_now('%d%m%y') }}{% for m in messages %}{{ m.content }}{% endfor %}"


def sums(*pairs: tuple[int, int]) -> str:
    rows = [{"problem": f"{a}+{b}=", "answer": str(a + b), "level": 1} for a, b in pairs]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory) -> Path:
    """Everything that a config can name by a path, in one folder."""
    from dapo_lit.cli.config_tree import composed_tree, resolved
    from dapo_lit.config import parse

    folder = tmp_path_factory.mktemp("inputs")
    base = RunComponents(parse(resolved(composed_tree(["+experiment=four_sums"])))).policy_folder
    shutil.copytree(base, folder / "policy")
    (folder / "policy" / "chat_template.jinja").write_text(DATED)
    (folder / "train.jsonl").write_text(sums((1, 2), (2, 2), (3, 1), (4, 3)))
    (folder / "heldout.jsonl").write_text(sums((5, 1), (6, 2)))
    (folder / "own.yaml").write_text(TEMPLATE)
    (folder / "reward_for_inputs.py").write_text(REWARD)
    return folder


@pytest.fixture
def config(folder, compose, monkeypatch) -> Callable[..., Config]:
    monkeypatch.syspath_prepend(folder)

    def made(*more: str) -> Config:
        return compose(
            f"policy.path={folder / 'policy'}", "task.name=file", f"task.path={folder / 'train.jsonl'}",
            f"task.eval_path={folder / 'heldout.jsonl'}", f"task.template={folder / 'own.yaml'}", "preflight=false",
            "reward.function=reward_for_inputs.score", "budget.steps=1", "replay.record=[1]", "task.label=own",
            f"runs_dir={folder / 'runs'}", *more,
        )  # fmt: skip

    return made


@pytest.fixture
def run(config) -> Path:
    """One step, trained once."""
    path = run_path(config(), "dapo")
    if not path.exists():
        train(config(), [])
    return path


@contextmanager
def edited(file: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(change(before))
    try:
        yield
    finally:
        file.write_bytes(before)


def moved_weight(content: bytes) -> bytes:
    """One weight of all, by a little."""
    from safetensors.torch import load, save

    tensors = load(content)
    tensors[min(tensors)].view(-1)[-1] += 1e-3
    return save(tensors, {"format": "pt"})


EDITS = {
    "every statement": ("train.jsonl", lambda c: c.replace(b"+", b"-"), "problems"),
    "every answer": ("train.jsonl", lambda c: c.replace(b'"answer": "', b'"answer": "1'), "problems"),
    "a column that the reward may read": ("train.jsonl", lambda c: c.replace(b'"level": 1', b'"level": 2'), "columns"),
    "a held-out answer": ("heldout.jsonl", lambda c: c.replace(b'"6"', b'"7"'), "heldout"),
    "the template": ("own.yaml", lambda c: c.replace(b"{problem}", b"{problem}="), "template"),
    "the chat template": ("policy/chat_template.jinja", lambda c: c + b"1", "tokenizer"),
    "the vocabulary": ("policy/tokenizer.json", lambda c: c.replace(b'"1": 3', b'"x": 3'), "tokenizer"),
    "a token that ends": ("policy/generation_config.json", lambda c: c.replace(b": 1,", b": [1, 2],"), "tokenizer"),
    "a weight": ("policy/model.safetensors", moved_weight, "weights"),
    "a size in config.json": ("policy/config.json", lambda c: c.replace(b"1e-06", b"2e-06"), "weights"),
    "the reward": ("reward_for_inputs.py", lambda c: c + b"\n# edited\n", "source reward_for_inputs.score"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_a_config_names_by_a_path_is_compared_by_its_content(folder, config, run, edit):
    name, change, part = EDITS[edit]
    resumed, fork = config("resume=true", "budget.steps=2"), config()
    fork = fork.model_copy(update={"fork": Fork(run=str(run), steps=(1,), horizon=1)})
    check_same_inputs(resumed, run, RunComponents(resumed).inputs)
    before = (folder / name).read_bytes()
    with edited(folder / name, change):
        assert (folder / name).read_bytes() != before
        inputs = RunComponents(resumed).inputs
        assert differing(recorded(read_record(run)), inputs) == [part]
        with pytest.raises(ConfigError, match="changed since"):
            check_same_inputs(resumed, run, inputs)
        with pytest.raises(ConfigError, match="fork a run"):
            check_same_inputs(fork, run.with_name("seed_7"), inputs)
        if part != "heldout":  # which a replay reads as well, and does not use
            datamodule = RolloutDataModule(config(), RunComponents(config()))
            datamodule.setup("fit")
            saved = torch.load(run / "replay" / "step_000001.ckpt", weights_only=False)["RolloutDataModule"]
            with pytest.raises(ConfigError, match=r"checkpoint .*another state of"):
                datamodule.load_state_dict(saved)
            datamodule.close()
        with pytest.raises(ConfigError, match="changed since"):
            open_recording(run, 1, None)
    one = read_run(run)
    other = replace(one, arm="dapo-clip_higher", record={**one.record, "inputs": inputs})
    (reason,) = guard.refusals(Runs((one, other)))
    assert "dapo/seed_0" in reason
    assert "dapo-clip_higher/seed_0" in reason
    unknown = replace(other, record={k: v for k, v in other.record.items() if k != "inputs"})
    assert guard.refusals(Runs((one, unknown))) == []  # an older run


def test_a_command_that_resumes_on_edited_files_ends_in_one_line_before_anything_is_touched(folder, config, run):
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file()}
    with edited(folder / "train.jsonl", lambda c: c.replace(b"+", b"-")), pytest.raises(ConfigError) as caught:
        train(config("resume=true", "budget.steps=2"), [])
    assert len(str(caught.value).splitlines()) == 1
    assert f"the training problems (task.path={folder / 'train.jsonl'}) have changed" in str(caught.value)
    kept = {file: file.stat().st_mtime_ns for file in before if file.name not in ("heartbeat", ".lock")}
    assert kept.items() <= before.items()


def test_arms_that_differ_in_the_setting_that_decides_a_part_are_compared_in_that_setting_only(run):
    one = read_run(run)
    tree = {**one.config, "task": {**one.config["task"], "path": "elsewhere.jsonl"}}
    inputs = {**one.record["inputs"], "problems": "other", "prompts": "other"}
    other = replace(one, arm="b", config=tree, record={**one.record, "inputs": inputs})
    assert [reason.split(",")[0] for reason in guard.refusals(Runs((one, other)))] == ["arms differ in task.path"]


def test_a_cell_is_refused_at_its_start_if_another_cell_of_the_study_read_something_else(folder, config, run, compose):
    cell = config("+study=leave_one_out", "study.arm=dapo", "seed=1", "study_name=four_sums")
    inputs = RunComponents(cell).inputs
    check_same_inputs(cell, run_path(cell, "dapo"), inputs)
    with pytest.raises(ConfigError, match="name of its own"):
        check_same_inputs(cell, run_path(cell, "dapo"), {**inputs, "problems": "other"})


def test_forks_of_two_states_do_not_share_a_table(run):
    one = read_run(run)
    forks = [replace(one, seed=s, record={**one.record, "origin": {"state": state}}) for s, state in enumerate("aab")]
    assert guard.refusals(Runs(tuple(forks[:2]))) == []
    (reason,) = guard.refusals(Runs(tuple(forks)))
    assert reason.startswith("the training state")
    assert "dapo/seed_0 (a) and dapo/seed_2 (b)" in reason


def test_a_cell_that_is_found_twice_must_have_read_the_same(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy" / "dapo" / "seed_0")
    assert len(load(run, tmp_path / "copy")) == 1
    file = tmp_path / "copy" / "dapo" / "seed_0" / "run.json"
    record = json.loads(file.read_text())
    record["inputs"]["problems"] = "other"
    file.write_text(json.dumps({key: value for key, value in record.items() if key != "crc32"}))
    with pytest.raises(StudyError, match="the training problems"):
        load(run, tmp_path / "copy")


def test_a_chat_template_that_asks_for_the_time_gets_one_date_for_a_run_and_a_study(folder, config, run, monkeypatch):
    read = RunComponents(config(), day=date(2026, 5, 4))
    assert read.decode(read.train_prompts[0][0].ids).startswith("0405261+2=")
    first = date.fromisoformat(read_record(run)["prompt_date"])
    monkeypatch.setattr(same_inputs, "today", lambda: date(2031, 1, 1))
    resumed = config("resume=true", "budget.steps=2")
    assert prompt_day(resumed, run) == first
    assert RunComponents(resumed, day=first).inputs == read_record(run)["inputs"]
    assert differing(RunComponents(resumed, day=date(2031, 1, 1)).inputs, read_record(run)["inputs"]) == ["prompts"]
    assert prompt_day(config(), run) == date(2031, 1, 1)  # a new run
    cell = config("+study=leave_one_out", "study.arm=dapo", "study_name=dated")
    path = run_path(cell, "dapo")
    assert prompt_day(cell, path) == date(2031, 1, 1)
    path.mkdir(parents=True)
    plan = {"study": "leave_one_out", "seeds": [0]}
    entry = {"at": "2030-12-31T23:59:00+00:00", "plan": plan}
    (path.parents[1] / "study.json").write_text(json.dumps([entry]))
    assert prompt_day(cell, path) == date(2030, 12, 31)
    assert prompt_day(config(), run.with_name("seed_9")) == date(2031, 1, 1)


def test_parts_of_a_large_file_stand_for_it(tmp_path, monkeypatch):
    from dapo_lit.policy import digests

    monkeypatch.setattr(digests, "WHOLE", 1000)
    monkeypatch.setattr(digests, "PART", 16)
    tensors = {"a": torch.randn(64, 64)}
    save_file(tensors, tmp_path / "model.safetensors")
    before = digests.weights_of(tmp_path)
    assert digests.weights_of(tmp_path) == before
    save_file({"a": load_file(tmp_path / "model.safetensors")["a"] * 1.0001}, tmp_path / "model.safetensors")
    assert digests.weights_of(tmp_path) != before
