"""What a run leaves behind when an exception or Ctrl-C ends it: nothing that a resumed run would go wrong from."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import RUN, Run, same_run, stop_in, untimed

from dapo_lit.engines.protocol import EngineError
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit.callbacks import Checkpoints
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.module import DAPOModule
from dapo_lit.ranks import Ranks, raised_by_all
from dapo_lit.rollout.collect import Collector
from dapo_lit.rollout.step_collection import StepCollection
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.runs.rollout_table import write_rollouts
from dapo_lit.train import train

SETTINGS = (
    "budget.steps=3", "evaluation.every=1", "algorithm.dynamic_sampling.carry_over=all", "rollout.max_batch_size=12",
    "logger.rollouts_every=1", "preflight=false", "task.max_response_tokens=8", "algorithm.overlong.cache_tokens=4",
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


@pytest.fixture
def whole(whole_runs, compose) -> Path:
    """The runs folder of an uninterrupted run."""
    if not (whole_runs / RUN).exists():
        train(compose(*SETTINGS, f"runs_dir={whole_runs}"), [])
    return whole_runs


Patch = Callable[[pytest.MonkeyPatch], None]


def sampling(step: int, error: BaseException | None = None) -> Patch:
    """A run under this patch is asked to stop, or meets `error`, in the middle of sampling `step`."""
    return lambda patch: stop_in(step, patch, error)


def interrupted_twice(step: int) -> Patch:
    """It gets SIGINT while it samples `step`, and another one while it undoes that."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        take, undo = StepCollection._take_completion, Collector.load_state_dict

        def interrupted(self, completion):
            take(self, completion)
            if self._step == step:
                os.kill(os.getpid(), signal.SIGINT)

        def interrupted_again(self, state):
            os.kill(os.getpid(), signal.SIGINT)
            undo(self, state)

        signal.signal(signal.SIGINT, signal.default_int_handler)  # an earlier run in this process may ignore it
        patch.setattr(StepCollection, "_take_completion", interrupted)
        patch.setattr(Collector, "load_state_dict", interrupted_again)

    return apply


def updates(step: int, error: BaseException) -> Patch:
    """It meets `error` once the weights have moved in `step`."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        make_updates = DAPOModule.make_updates

        def with_error(self, batch):
            make_updates(self, batch)
            if batch.step == step:
                raise error

        patch.setattr(DAPOModule, "make_updates", with_error)

    return apply


def evaluation(step: int, error: BaseException | int) -> Patch:
    """It meets `error`, or gets a signal, while it evaluates after `step`."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        evaluations = RolloutDataModule.evaluations

        def with_error(self, final=False):
            if self.trainer.lightning_module.counters.step == step:
                if isinstance(error, BaseException):
                    raise error
                os.kill(os.getpid(), error)
            return evaluations(self, final)

        patch.setattr(RolloutDataModule, "evaluations", with_error)

    return apply


def writing_rollouts(step: int, error: BaseException) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        def interrupted(folder, collected, decode):
            if collected.step == step:
                raise error
            write_rollouts(folder, collected, decode)

        patch.setattr("dapo_lit.lit.callbacks.write_rollouts", interrupted)

    return apply


CTRL_C, GONE = KeyboardInterrupt(), RuntimeError("gone")
# what ends the run, when: (how, checkpoint_every, checkpoints left, status)
ENDS: dict[str, tuple[Patch, int, list[int], str]] = {
    "Ctrl-C while step 2 is sampled": (sampling(2, CTRL_C), 100, [1], "stopped"),
    "Ctrl-C that arrives twice while step 2 is sampled": (interrupted_twice(2), 100, [1], "stopped"),
    "a stop while step 3 is sampled": (sampling(3), 2, [2], "preempted"),
    "an error among the updates of step 2": (updates(2, GONE), 1, [1], "failed"),
    "Ctrl-C while rollouts are written": (writing_rollouts(2, CTRL_C), 1, [1], "stopped"),
    "an error in the evaluation after step 2": (evaluation(2, GONE), 100, [2], "failed"),
    "SIGTERM in the first evaluation": (evaluation(0, signal.SIGTERM), 100, [], "preempted"),
    "SIGTERM in the evaluation after step 2": (evaluation(2, signal.SIGTERM), 100, [2], "preempted"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_is_ended_anywhere_goes_on_bit_for_bit_and_loses_no_file(
    tmp_path, compose, monkeypatch, capsys, whole, end
):
    how, every, left, as_status = ENDS[end]
    settings = (*SETTINGS, f"runs_dir={tmp_path}", f"trainer.checkpoint_every={every}")
    with monkeypatch.context() as patch:
        how(patch)
        with pytest.raises((RuntimeError, SystemExit, KeyboardInterrupt)) as ended:
            train(compose(*settings), [])
    assert saved(tmp_path) == [f"step_{step:06d}.ckpt" for step in left]
    assert status(tmp_path) == as_status
    assert (as_status == "failed") == isinstance(ended.value, RuntimeError)
    assert (as_status == "preempted") == isinstance(ended.value, SystemExit)
    assert as_status != "preempted" or ended.value.code == 0
    assert not (tmp_path / RUN / "DONE.json").exists()
    if as_status == "stopped" or "updates" in end:  # what it goes on from is named
        said = capsys.readouterr().out + "".join(getattr(ended.value, "__notes__", ()))
        assert f"step_{left[-1]:06d}.ckpt" in said
    train(compose(*settings, "resume=auto"), [])
    assert same_run(tmp_path / RUN, whole / RUN)
    assert status(tmp_path) == "finished"
    for pattern in ("rollouts/*", "eval/*/*"):
        one, other = (sorted(file.name for file in (runs / RUN).glob(pattern)) for runs in (tmp_path, whole))
        assert one == other


def test_a_resumed_run_whose_budget_is_spent_makes_the_last_evaluation_and_no_further_step_and_is_then_done(
    tmp_path, compose, monkeypatch, capsys
):
    settings = (*SETTINGS, "budget.tokens_generated=1", f"runs_dir={tmp_path}")
    with monkeypatch.context() as patch:
        evaluation(1, GONE)(patch)
        with pytest.raises(RuntimeError, match="gone"):
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


def test_a_budget_of_tokens_that_is_spent_is_spent_for_a_resumed_run_too(tmp_path, compose, monkeypatch):
    settings = (*SETTINGS, "budget.steps=9", "budget.tokens_generated=1", f"runs_dir={tmp_path}")
    write = Checkpoints._write

    def asked_to_leave(self, *given, **named):
        os.kill(os.getpid(), signal.SIGTERM)
        return write(self, *given, **named)

    with monkeypatch.context() as patch:  # while the last checkpoint is written
        patch.setattr(Checkpoints, "_write", asked_to_leave)
        with pytest.raises(SystemExit):
            train(compose(*settings), [])
    for resume in ("auto", "true"):
        train(compose(*settings, f"resume={resume}"), [])
        assert [row["step"] for row in untimed(tmp_path / RUN)] == [0, 1]
        assert status(tmp_path) == "finished"


def test_an_evaluation_at_a_number_of_tokens_that_an_error_ends_is_made_by_the_resumed_run(
    tmp_path, compose, monkeypatch
):
    settings = (
        *SETTINGS, "budget.steps=2", "evaluation.every=0", "evaluation.at_tokens=[1]", f"runs_dir={tmp_path}",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        evaluation(1, GONE)(patch)
        with pytest.raises(RuntimeError, match="gone"):
            train(compose(*settings), [])
    train(compose(*settings, "resume=true"), [])
    evaluated = [row["step"] for row in untimed(tmp_path / RUN) if any(key.startswith("eval/") for key in row)]
    assert evaluated == [0, 1, 2]


def test_engine_and_verifier_are_closed_and_a_fault_of_that_does_not_hide_what_ended_the_run(
    compose, monkeypatch, capsys
):
    closed: list[str] = []

    def close(self) -> None:
        closed.append("engine")
        raise OSError("its worker is gone")

    monkeypatch.setattr(TorchEngine, "close", close)
    updates(1, RuntimeError("out of memory"))(monkeypatch)
    run = Run(compose(*SETTINGS))
    monkeypatch.setattr(run.parts.verifier, "close", lambda: closed.append("verifier"))
    with pytest.raises(RuntimeError, match="out of memory"):
        run.fit()
    assert sorted(closed) == ["engine", "verifier"]
    assert "its worker is gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "saves"), [(RuntimeError("gone"), False), (raised_by_all(EngineError("gone")), True)]
)
def test_several_ranks_save_after_an_error_that_all_of_them_raise(compose, monkeypatch, error, saves):
    run = Run(compose(*SETTINGS, "trainer.checkpoint_every=100"))
    checkpoints = Checkpoints(compose(*SETTINGS), run.folder, StopSignal(), Ranks(rank=1, size=2))
    checkpoints.trains, run.module.counters.step = True, 2
    saved_steps: list[int] = []
    monkeypatch.setattr(checkpoints, "save", lambda trainer, step: saved_steps.append(step))
    trainer = SimpleNamespace(datamodule=SimpleNamespace(next_step=3))
    checkpoints.on_exception(trainer, run.module, error)
    assert saved_steps == ([2] if saves else [])


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
