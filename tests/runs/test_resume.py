"""A resumed run may compute elsewhere and otherwise, and further; it learns what it learned before."""

import json
import re
from pathlib import Path

import pytest
import yaml
from damages import resealed

from ablations.files.metrics_file import read_metrics
from dapo_lit.cli.jobs import arm_of
from dapo_lit.config import Config, ConfigError
from dapo_lit.runs.run_folder import RunFolder, is_done, open_run, run_path
from dapo_lit.train import train

QUICK = ("budget.steps=2", "trainer.checkpoint_every=1", "evaluation.samples=1", "preflight=false")


@pytest.fixture
def two_steps(compose) -> Path:
    """A finished run of two steps."""
    config = compose(*QUICK)
    train(config, [])
    return run_path(config, arm_of(config))


def record(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def test_a_run_resumed_with_other_execution_keys_learns_the_same_and_records_them(compose, two_steps, capsys):
    longer = (*QUICK, "budget.steps=4")
    changed = ("trainer.micro_batch_tokens=64", "rollout.max_batch_size=3", "trainer.threads=1")
    before = record(two_steps)["config_hash"]
    train(compose(*longer, *changed, "resume=true"), [])
    printed = capsys.readouterr().out
    whole = compose(*longer, "study_name=whole")
    train(whole, [])
    rows, others = (read_metrics(run).table for run in (two_steps, run_path(whole, "dapo")))
    assert list(rows.index) == [0, 1, 2, 3, 4]
    for key in ("rollout/accuracy", "loss/policy", "policy/entropy", "optim/grad_norm", "batch/length_mean"):
        assert rows[key].tolist() == pytest.approx(others[key].tolist(), rel=1e-4, abs=1e-6, nan_ok=True), key
    [change] = record(two_steps)["resumed_with"]
    old = whole.model_dump(mode="json")
    assert change["step"] == 2
    assert change["changes"] == {
        "budget.steps": [2, 4],
        "rollout.max_batch_size": [old["rollout"]["max_batch_size"], 3],
        "trainer.micro_batch_tokens": [old["trainer"]["micro_batch_tokens"], 64],
    }
    assert f"trainer.micro_batch_tokens: {old['trainer']['micro_batch_tokens']} -> 64" in printed
    assert record(two_steps)["config_hash"] == record(run_path(whole, "dapo"))["config_hash"] != before


@pytest.mark.parametrize(
    "override",
    [
        "rollout.vllm.server.urls=[http://other:8000]", "trainer.devices=2 trainer.strategy=fsdp",
        "logger.progress=plain", "budget.steps=5", "budget.steps=99", "budget.tokens_generated=900",
    ],
)  # fmt: skip
def test_where_a_run_computes_may_change_and_its_budget_down_to_what_is_done(compose, override):
    open_at(compose())
    open_run(compose(*override.split(), "resume=true"), [], "dapo")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm.clip.high=0.3", "algorithm.clip.high: 0.28 -> 0.3"),
        ("trainer.sharding.dtype=bfloat16", "trainer.sharding.dtype: None -> 'bfloat16'"),
        ("budget.steps=4", "5"),
        ("budget.tokens_generated=899", "900"),
        ("rollout.steps_ahead=1", "rollout.steps_ahead: 0 -> 1"),  # a key that the older config lacks
    ],
)
def test_what_a_run_learns_may_not_change_nor_its_budget_end_before_what_is_done(compose, override, named):
    open_at(compose())
    run = run_path(compose(), "dapo")
    tree = yaml.safe_load((run / "config.yaml").read_text())
    del tree["rollout"]["steps_ahead"]
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    resealed(run)
    before = {file: file.read_text() for file in run.glob("*.*")}
    with pytest.raises(ConfigError, match=re.escape(named)):
        open_run(compose(override, "resume=true"), [], "dapo")
    assert {file: file.read_text() for file in before} == before


def open_at(config: Config, **spent: float) -> None:
    """A run that has reached step 5 and 900 tokens."""
    folder = open_run(config, [], "dapo")
    folder.append_row({"step": 5, "tokens_generated": 900, "wall_s": 7.5} | spent)


def test_a_finished_run_is_done_until_its_budget_grows(compose, two_steps):
    assert is_done(compose(*QUICK, "resume=auto"), "dapo")
    assert is_done(compose(*QUICK, "resume=auto", "budget.tokens_generated=999999999"), "dapo")
    assert not is_done(compose(*QUICK, "resume=auto", "budget.steps=3"), "dapo")
    RunFolder(two_steps, resumes=True).write_run(status="solved")
    assert is_done(compose(*QUICK, "resume=auto", "budget.steps=3"), "dapo")


def test_checkpoints_of_one_process_are_not_read_by_several(compose, two_steps):
    with pytest.raises(ConfigError, match=r"trainer\.strategy=single.*trainer\.strategy=fsdp"):
        open_run(compose(*QUICK, "trainer.strategy=fsdp", "resume=true"), [], "dapo")
