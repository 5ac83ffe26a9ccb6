"""A checkpoint from someone else: its weights are read, and nothing in it is executed."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from command_line import SMALL, run_cli
from commands import evaluation, export_to
from damages import resealed

from ablations.errors import DamagedError
from dapo_lit.evaluate import evaluate
from dapo_lit.runs.checkpoint_weights import METADATA, base_fingerprint, policy_weights
from dapo_lit.train import train
from dapo_lit_tools.replays.recorded_step import open_recording, replay


class Poison:
    """When it is unpickled, it makes a folder."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def poison(checkpoint: Path, made: Path, key: str = "extra") -> None:
    state = torch.load(checkpoint, weights_only=False)
    torch.save({**state, key: Poison(made)}, checkpoint)
    torch.load(checkpoint, weights_only=False)
    assert made.exists()  # the poison works
    made.rmdir()


def test_nothing_in_a_poisoned_checkpoint_runs_whoever_reads_it(compose, tmp_path, capsys):
    train(compose("budget.steps=2", "replay.record=[2]"), [])
    run, made = tmp_path / "runs" / "four_sums" / "dapo" / "seed_0", tmp_path / "made_by_the_checkpoint"
    checkpoint, before = run / "checkpoints" / "step_000002.ckpt", run / "replay" / "step_000002.ckpt"
    for file in (checkpoint, before):
        poison(file, made)
    resealed(run)

    def refused(file: Path, read) -> None:
        with pytest.raises(DamagedError) as caught:
            read()
        assert not made.exists()
        assert str(caught.value).startswith(f"{file} names posix.mkdir, ")
        assert "\n" not in str(caught.value)

    refused(
        checkpoint,
        lambda: export_to(tmp_path / "out", run),
    )
    refused(checkpoint, lambda: evaluate(evaluation(f"ckpt={run}", f"output={tmp_path / 'evaluated'}"), []))
    refused(checkpoint, lambda: train(compose("budget.steps=3", "replay.record=[2]", "resume=true"), []))
    recording = open_recording(run, 2)
    refused(before, lambda: replay(recording, recording.config))


def sharded(folder: Path) -> Path:
    """As a run of several processes writes it."""
    state = {"state_dict": {"policy.weight": torch.arange(4.0)}, "optimizer_0": {"step": 3}}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    torch.save({"dapo_lit": {"base_fingerprint": 7}}, folder / METADATA)
    return folder


@pytest.mark.parametrize("part", ["the list of tensors", "an entry", METADATA])
def test_no_part_of_a_poisoned_sharded_checkpoint_is_executed(tmp_path, part):
    folder, made = sharded(tmp_path / "step_000001.ckpt"), tmp_path / "made"
    if part == "the list of tensors":
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        (folder / ".metadata").write_bytes(pickle.dumps(replace(metadata, planner_data=Poison(made))))
    elif part == "an entry":
        state = {"state_dict": {"policy.weight": torch.arange(4.0), "policy.more": Poison(made)}}
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    else:
        torch.save({"dapo_lit": Poison(made)}, folder / METADATA)
    with pytest.raises(DamagedError, match=r"step_000001\.ckpt.* names "):
        base_fingerprint(folder) if part == METADATA else policy_weights(folder)
    assert not made.exists()


@pytest.mark.parametrize("state", [[1, 2], {"weights": {}}, {"state_dict": 3}, {"state_dict": {"critic.w": 1}}])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, state):
    torch.save(state, tmp_path / "other.ckpt")
    with pytest.raises(DamagedError, match=r"other.ckpt "):
        policy_weights(tmp_path / "other.ckpt")


def test_a_state_that_does_not_fit_or_is_not_finite_is_named_in_one_line(tmp_path):
    run = tmp_path / "runs" / "four_sums" / "dapo" / "seed_0"
    arguments = (*(a for a in SMALL if not a.startswith("budget.")), "trainer.checkpoint_every=2")
    assert run_cli(*arguments, "budget.steps=2", cwd=tmp_path).returncode == 0
    file = run / "checkpoints" / "step_000002.ckpt"
    whole = file.read_bytes()
    for change, reason in (
        (lambda weight: weight[:1], "does not fit the policy of the config (size mismatch"),
        (lambda weight: weight * float("nan"), "has a NaN or an infinite number in policy."),
    ):
        file.write_bytes(whole)
        state = torch.load(file, weights_only=False)
        name = next(iter(state["state_dict"]))
        state["state_dict"][name] = change(state["state_dict"][name])
        torch.save(state, file)
        resealed(run)
        done = run_cli(*arguments, "budget.steps=4", "resume=true", cwd=tmp_path)
        (line,) = done.stderr.strip().splitlines()
        assert done.returncode == 2
        assert f"{file.relative_to(tmp_path)} {reason}" in line
