"""What a run leaves behind when an exception or Ctrl-C ends it: nothing that a resumed run would go wrong from."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import RUN, Run, same_run, stop_in, untimed

from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit.checkpoints import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.step_collection import StopRequestedError
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.rollout_table import write_rollouts
from dapo_lit.train import train

SETTINGS = (
    "budget.steps=3", "evaluation.every=1", "algorithm.dynamic_sampling.carry_over=finished",
    "rollout.max_batch_size=12",
)  # fmt: skip


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Lightning ignores SIGINT from the first one on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def saved(runs: Path) -> list[str]:
    return [checkpoint.name for checkpoint in complete(runs / RUN / "checkpoints")]


def status(runs: Path) -> str:
    return json.loads((runs / RUN / "run.json").read_text())["status"]


def after_the_updates_of(step: int, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """A run under this patch meets `error` once the weights have moved in `step`."""
    make_updates = DAPOModule.make_updates

    def with_error(self, batch):
        make_updates(self, batch)
        if batch.step == step:
            raise error

    patch.setattr(DAPOModule, "make_updates", with_error)


def in_the_evaluation_of(step: int, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """A run under this patch meets `error` while it evaluates after `step`."""
    evaluations = RolloutDataModule.evaluations

    def with_error(self, final=False):
        if self.trainer.lightning_module.counters.step == step:
            raise error
        return evaluations(self, final)

    patch.setattr(RolloutDataModule, "evaluations", with_error)


@pytest.fixture
def whole(whole_runs, compose) -> Path:
    """The runs folder of an uninterrupted run."""
    if not (whole_runs / RUN).exists():
        train(compose(*SETTINGS, f"runs_dir={whole_runs}"), [])
    return whole_runs


def test_ctrl_c_while_a_step_is_sampled_saves_the_state_before_it_and_marks_the_run_as_stopped(
    tmp_path, compose, monkeypatch, capsys, whole
):
    settings = (*SETTINGS, f"runs_dir={tmp_path}", "trainer.checkpoint_every=100")
    with monkeypatch.context() as patch:
        stop_in(2, patch, KeyboardInterrupt())
        with pytest.raises(SystemExit):
            train(compose(*settings), [])
    assert saved(tmp_path) == ["step_000001.ckpt"]
    assert status(tmp_path) == "stopped"
    assert "step_000001.ckpt with resume=true" in capsys.readouterr().out
    train(compose(*settings, "resume=true"), [])
    assert same_run(tmp_path / RUN, whole / RUN)


def test_a_stop_that_only_another_rank_was_asked_for_leaves_the_run_unfinished(tmp_path, compose, monkeypatch):
    stop_in(2, monkeypatch, StopRequestedError())
    with pytest.raises(SystemExit, match="0"):
        train(compose(*SETTINGS, f"runs_dir={tmp_path}"), [])
    assert status(tmp_path) == "preempted"
    assert not (tmp_path / RUN / "DONE.json").exists()


@pytest.mark.parametrize(("step", "error"), [(2, RuntimeError("engine gone")), (3, KeyboardInterrupt())])
def test_an_evaluation_that_fails_is_made_by_the_resumed_run_and_its_row_written(
    tmp_path, compose, monkeypatch, whole, step, error
):
    """Step 3 is the last one: nothing is left to do but its evaluation."""
    settings = (*SETTINGS, f"runs_dir={tmp_path}", "trainer.checkpoint_every=100")
    with monkeypatch.context() as patch:
        in_the_evaluation_of(step, error, patch)
        with pytest.raises((RuntimeError, SystemExit)):
            train(compose(*settings), [])
    assert saved(tmp_path) == [f"step_{step:06d}.ckpt"]
    assert [row["step"] for row in untimed(tmp_path / RUN)] == list(range(step))
    train(compose(*settings, "resume=true"), [])
    assert same_run(tmp_path / RUN, whole / RUN)
    assert status(tmp_path) == "finished"
    assert (tmp_path / RUN / "eval" / "four_sums" / f"step_{step:06d}.parquet").is_file()


def test_a_resumed_run_whose_budget_is_spent_makes_the_last_evaluation_and_no_further_step_and_is_then_done(
    tmp_path, compose, monkeypatch, capsys
):
    settings = (*SETTINGS, "budget.tokens_generated=1", f"runs_dir={tmp_path}")
    with monkeypatch.context() as patch:
        in_the_evaluation_of(1, RuntimeError("engine gone"), patch)
        with pytest.raises(RuntimeError, match="engine gone"):
            train(compose(*settings), [])
    train(compose(*settings, "resume=true"), [])
    assert [row["step"] for row in untimed(tmp_path / RUN)] == [0, 1]
    assert status(tmp_path) == "finished"
    before = (tmp_path / RUN / "metrics.jsonl").read_bytes()
    train(compose(*settings, "resume=auto"), [])
    assert (tmp_path / RUN / "metrics.jsonl").read_bytes() == before
    assert "resume=auto" in capsys.readouterr().out
    train(compose(*settings), [])  # neither resumed nor overwritten: moved aside
    assert (tmp_path / RUN.parent / "seed_0.replaced_1" / "metrics.jsonl").read_bytes() == before


def test_engine_and_verifier_are_closed_and_a_fault_of_that_does_not_hide_what_ended_the_run(
    compose, monkeypatch, capsys
):
    closed: list[str] = []

    def close(self) -> None:
        closed.append("engine")
        raise OSError("its worker is gone")

    monkeypatch.setattr(TorchEngine, "close", close)
    after_the_updates_of(1, RuntimeError("out of memory"), monkeypatch)
    run = Run(compose(*SETTINGS))
    monkeypatch.setattr(run.parts.verifier, "close", lambda: closed.append("verifier"))
    with pytest.raises(RuntimeError, match="out of memory"):
        run.fit()
    assert sorted(closed) == ["engine", "verifier"]
    assert "its worker is gone" in capsys.readouterr().out


class SignalledLate(Ranks):
    """A signal reaches this rank when all have told that there was none."""

    def gather(self, value):
        if value is False:
            self.group.requested = True
        return [value]


def test_a_signal_after_the_ranks_have_spoken_waits_for_the_next_time_they_do(compose, monkeypatch):
    run, stop = Run(compose(*SETTINGS, "trainer.checkpoint_every=100")), StopSignal()
    checkpoints = Checkpoints(compose(*SETTINGS, "trainer.checkpoint_every=100"), run.folder, stop)
    checkpoints.ranks = SignalledLate(group=stop)
    saved_steps: list[int] = []
    monkeypatch.setattr(checkpoints, "save", lambda trainer, step: saved_steps.append(step))
    trainer, batch = SimpleNamespace(should_stop=False), SimpleNamespace(step=1)
    checkpoints.on_train_batch_end(trainer, run.module, None, batch, 0)
    assert (stop.requested, saved_steps, trainer.should_stop) == (True, [], False)
    checkpoints.on_train_batch_end(trainer, run.module, None, batch, 0)
    assert (stop.requested, saved_steps, trainer.should_stop) == (True, [1], True)


@pytest.mark.parametrize(("every", "left"), [(1, ["step_000001.ckpt"]), (100, [])])
def test_what_fails_among_the_updates_of_a_step_leaves_the_checkpoint_before(
    tmp_path, compose, monkeypatch, capsys, whole, every, left
):
    settings = (*SETTINGS, f"runs_dir={tmp_path}", f"trainer.checkpoint_every={every}")
    with monkeypatch.context() as patch:
        after_the_updates_of(2, RuntimeError("out of memory"), patch)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(compose(*settings), [])
    assert saved(tmp_path) == left
    assert status(tmp_path) == "failed"
    assert ("step_000001.ckpt" in capsys.readouterr().out) == bool(left)
    train(compose(*settings, "resume=auto"), [])
    assert same_run(tmp_path / RUN, whole / RUN)


def test_ctrl_c_while_the_rollouts_are_written_loses_no_file(tmp_path, compose, monkeypatch):
    settings = (*SETTINGS, "trainer.checkpoint_every=1", "logger.rollouts_every=1")
    train(compose(*settings, f"runs_dir={tmp_path / 'whole'}"), [])
    settings = (*settings, f"runs_dir={tmp_path}")

    def interrupted(folder, collected):
        if collected.step == 2:
            raise KeyboardInterrupt
        write_rollouts(folder, collected)

    with monkeypatch.context() as patch:
        patch.setattr("dapo_lit.lit.callbacks.write_rollouts", interrupted)
        with pytest.raises(SystemExit):
            train(compose(*settings), [])
    train(compose(*settings, "resume=true"), [])
    written = [sorted(f.name for f in (place / RUN / "rollouts").iterdir()) for place in (tmp_path, tmp_path / "whole")]
    assert written[0] == written[1]
    assert same_run(tmp_path / RUN, tmp_path / "whole" / RUN)


def test_a_signal_during_the_first_evaluation_ends_the_run_before_its_first_step(
    tmp_path, compose, capsys, monkeypatch
):
    settings = (*SETTINGS, f"runs_dir={tmp_path}")
    evaluations = RolloutDataModule.evaluations

    def signalled(self, final=False):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluations(self, final)

    monkeypatch.setattr(RolloutDataModule, "evaluations", signalled)
    with pytest.raises(SystemExit) as ended:
        train(compose(*settings), [])
    assert ended.value.code == 0
    assert status(tmp_path) == "preempted"
    assert "stopped on request after step 0" in capsys.readouterr().out
