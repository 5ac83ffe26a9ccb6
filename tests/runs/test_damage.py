"""A damaged file of a run gives one line with its name, whichever command meets it."""

import shutil
from pathlib import Path

import pytest
import torch
from disturbances import resealed
from evaluation_config import evaluation

from dapo_lit.config import ConfigError
from dapo_lit.config.export import ExportConfig
from dapo_lit.errors import DamagedError, UserError
from dapo_lit.evaluate import evaluate
from dapo_lit.export import export
from dapo_lit.replay import replay_run
from dapo_lit.report import main as report
from dapo_lit.status import main as status
from dapo_lit.train import train

OVERRIDES = ("budget.steps=2", "replay.record=[2]", "trainer.checkpoint_every=1")


@pytest.fixture
def run(compose, tmp_path) -> Path:
    train(compose(*OVERRIDES), [])
    return tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"


def test_a_damaged_config_or_record_is_named_by_every_command(run, tmp_path, capsys):
    whole = {name: (run / name).read_bytes() for name in ("config.yaml", "run.json")}
    commands = {
        "evaluate": lambda: evaluate(evaluation(f"ckpt={run}", f"output={tmp_path / 'evaluated'}"), []),
        "export": lambda: export(
            ExportConfig(ckpt=str(run), output=str(tmp_path / "out"), push=None, license=None), []
        ),
        "replay": lambda: replay_run(run, None, {}),
    }
    for damage in (b"", b"a: [", b"\xff", b"[1]"):
        (run / "config.yaml").write_bytes(damage)
        for read in commands.values():
            with pytest.raises(DamagedError, match=r"seed_0/config.yaml does not match") as caught:
                read()
            assert "\n" not in str(caught.value)
    (run / "config.yaml").write_bytes(whole["config.yaml"])
    for name, damages in (
        ("config.yaml", (b"", b"a: [", b"\xff", b"[1]")),
        ("run.json", (b"", b'{"arm', b"[]", b"{}")),
    ):
        for damage in damages:
            (run / name).write_bytes(damage)
            for read in (status, lambda arguments: report([*arguments, "--out", str(tmp_path / "report")])):
                capsys.readouterr()
                assert read([str(run.parent.parent)]) == 2
                printed = capsys.readouterr().err
                assert f"seed_0/{name} " in printed
                assert "restore it" in printed
        (run / name).write_bytes(whole[name])
    assert status([str(run.parent.parent)]) == 0


def test_a_checkpoint_that_lacks_a_part_is_named(compose, run, tmp_path):
    checkpoints, before = run / "checkpoints", run / "replay" / "step_000002.ckpt"
    newest = checkpoints / "step_000002.ckpt"
    whole = torch.load(newest, weights_only=False)

    def refused(file: Path, state: object, read) -> str:
        torch.save(state, file)
        resealed(run)
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value).startswith(str(file))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def exported() -> None:
        export(ExportConfig(ckpt=str(run), output=str(tmp_path / "out"), push=None, license=None), [])

    def resumed() -> None:
        train(compose(*OVERRIDES, "budget.steps=3", "resume=true"), [])

    for key in ("state_dict", "loops", "dapo_lit", "RolloutDataModule"):
        lacking = {name: value for name, value in whole.items() if name != key}
        assert f"no entry {key!r}" in refused(newest, lacking, resumed)
        assert f"no entry {key!r}" in refused(before, lacking, lambda: replay_run(run, None, {}))
    assert "no entry 'state_dict'" in refused(newest, {"model": {}}, exported)
    first = next(iter(whole["state_dict"]))
    part = {name: value for name, value in whole["state_dict"].items() if name != first}
    assert "does not fit the policy" in refused(newest, whole | {"state_dict": part}, exported)
    shutil.rmtree(checkpoints)
    with pytest.raises(ConfigError, match="no checkpoint there"):
        exported()


def test_a_row_that_was_damaged_is_named_when_the_run_is_resumed(compose, run, capsys):
    file = run / "metrics.jsonl"
    file.write_text(file.read_text().replace('"step": 1, "gradient_step": ', '"step": 1, "gradient_step": 1'))
    capsys.readouterr()
    train(compose(*OVERRIDES, "budget.steps=3", "resume=true"), [])
    assert "seed_0/metrics.jsonl, line 2 does not agree with its checksum" in capsys.readouterr().out
