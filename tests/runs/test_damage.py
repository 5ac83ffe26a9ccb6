"""A damaged file of a run gives one line with its name, whichever command meets it."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from commands import evaluation, export_to
from damages import damage, resealed

from ablations.errors import DamagedError, UserError
from ablations.files.record import read_config
from ablations.read.runs import load
from dapo_lit.config import ConfigError
from dapo_lit.evaluate import evaluate
from dapo_lit.status import main as status
from dapo_lit.train import train
from dapo_lit_tools.commands.replay import replay_run

OVERRIDES = ("budget.steps=2", "replay.record=[2]", "trainer.checkpoint_every=1", "preflight=false")


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Where the first run of this file is kept."""
    return tmp_path_factory.mktemp("sound") / "runs"


@pytest.fixture
def run(compose, tmp_path, sound) -> Path:
    if sound.exists():
        shutil.copytree(sound, tmp_path / "runs")
    else:
        train(compose(*OVERRIDES), [])
        shutil.copytree(tmp_path / "runs", sound)
    return tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"


@pytest.mark.parametrize(
    ("name", "how", "commands"),
    [
        ("config.yaml", "a bit flipped", ("evaluate", "export", "replay")),
        ("checkpoints/step_000002.ckpt", "removed", ("export",)),  # there is an older one
        ("replay/step_000002.ckpt", "removed", ("replay",)),
        ("rollouts/step_000002.parquet", "removed", ("replay",)),
    ],
)
def test_a_damaged_or_lost_file_is_named_by_every_command_that_reads_it(run, tmp_path, name, how, commands):
    reading = {
        "evaluate": lambda: evaluate(evaluation(f"ckpt={run}", f"output={tmp_path / 'evaluated'}"), []),
        "export": lambda: export_to(tmp_path / "out", run),
        "replay": lambda: replay_run(run, None, {}),
    }
    damage(run / name, how)
    for command in commands:
        with pytest.raises(DamagedError, match=re.escape(name)):
            reading[command]()
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_lacks_a_part_is_named(compose, run, tmp_path):
    checkpoints, before = run / "checkpoints", run / "replay" / "step_000002.ckpt"
    newest = checkpoints / "step_000002.ckpt"
    whole = torch.load(newest, weights_only=False)
    export = partial(export_to, tmp_path / "out", run)
    resume = partial(train, compose(*OVERRIDES, "budget.steps=3", "resume=true"), [])

    def refused(file: Path, state: object, read: Callable[[], object], reason: str) -> None:
        torch.save(state, file)
        resealed(run)
        with pytest.raises(UserError, match=f"^{re.escape(str(file))}[^\n]*{reason}[^\n]*$"):
            read()

    for key in ("state_dict", "loops", "dapo_lit", "RolloutDataModule"):
        lacking = {name: value for name, value in whole.items() if name != key}
        refused(newest, lacking, resume, f"no entry '{key}'")
        refused(before, lacking, partial(replay_run, run, None, {}), f"no entry '{key}'")
    refused(newest, {"model": {}}, export, "no entry 'state_dict'")
    part = dict(list(whole["state_dict"].items())[1:])
    refused(newest, whole | {"state_dict": part}, export, "does not fit the policy")
    shutil.rmtree(checkpoints)
    with pytest.raises(ConfigError, match="no checkpoint there"):
        export()


@pytest.mark.parametrize(
    ("name", "hows"),
    [
        ("run.json", ("removed", "a bit flipped", "zeroed")),
        ("metrics.jsonl", ("removed", "cut in half", "zeroed")),
        ("config.yaml", ("removed", "a bit flipped")),
        ("manifest.json", ("a bit flipped", "cut in half")),
    ],
)
def test_no_run_is_read_or_continued_whose_files_are_not_as_they_were(compose, run, capsys, name, hows):
    whole = (run / name).read_bytes()
    for how in hows:
        damage(run / name, how)
        assert status([str(run.parent.parent)]) == 2
        assert f"seed_0/{name} " in capsys.readouterr().err or name == "config.yaml"
        with pytest.raises(DamagedError, match=re.escape(name)):
            train(compose(*OVERRIDES, "budget.steps=3", "resume=auto"), [])
        (run / name).write_bytes(whole)
    train(compose(*OVERRIDES, "budget.steps=3", "resume=auto"), [])


def test_a_run_without_its_record_is_moved_aside_and_not_continued(compose, run):
    (run / "run.json").unlink()
    train(compose("budget.steps=1", "resume=false", "preflight=false"), [])
    assert (run.parent / "seed_0.replaced_1" / "metrics.jsonl").is_file()
    assert [file.name for file in (run / "checkpoints").iterdir()] == ["step_000001.ckpt"]


def test_a_table_that_was_altered_or_lost_is_named_by_who_reads_it(compose, run, tmp_path, capsys):
    study, table = str(run.parent.parent), run / "eval" / "four_sums" / "step_000002.parquet"
    whole = table.read_bytes()
    damage(table, "a bit flipped")
    assert status([study, "--pack", str(tmp_path / "packed")]) == 2
    assert f"{table.name} " in capsys.readouterr().err
    table.unlink()
    assert any(f"{table.name} is missing" in fault for fault in load(study).runs[0].faults)
    train(compose(*OVERRIDES, "budget.steps=3", "resume=true"), [])
    assert f"{table.name} is missing" in capsys.readouterr().out
    table.write_bytes(whole)
    assert load(study).runs[0].faults == ()


def test_one_flipped_bit_of_packed_cells_is_named_and_older_ones_are_read_as_unverified(run, tmp_path, capsys):
    packed = tmp_path / "packed"
    assert status([str(run.parent.parent), "--pack", str(packed)]) == 0
    for file in packed.glob("*.parquet"):
        whole = file.read_bytes()
        damage(file, "a bit flipped")
        assert status([str(packed)]) == 2
        assert f"{file.name} " in capsys.readouterr().err
        file.write_bytes(whole)
    (packed / "manifest.json").unlink()
    assert status([str(packed)]) == 0
    assert capsys.readouterr().err == f"unverified: no manifest.json in {packed}\n"


@pytest.mark.parametrize("key", ["2", "true", "null", "2026-11-29"])
def test_a_config_with_a_key_that_is_no_name_is_refused(tmp_path, key):
    (tmp_path / "config.yaml").write_text(f"algorithm:\n  {key}: 3\n")
    with pytest.raises(DamagedError, match="is not a name"):
        read_config(tmp_path)
