"""A damaged checkpoint, a kill between two renames, and the signals that ask a run to leave."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from damages import damage
from small_runs import stop_in
from thread_ranks import ThreadRanks, on_ranks

from ablations.errors import UserError
from ablations.files.atomic import DRAFT
from ablations.files.manifest import sum_of
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.processes import RunStart, StartPoint
from dapo_lit.runs.checkpoint_files import REMOVED, complete, damage_reason, newest_good, write_checkpoint
from dapo_lit.runs.preemption import SIGNALS, EndedByNoticeError, StopSignal, end_after, requeue_command
from dapo_lit.runs.run_folder import RunFolder
from dapo_lit.train import train

RUN = Path("runs") / "four_sums" / "dapo" / "seed_0"


def state(step: int) -> torch.Tensor:
    """200 KB that name their step."""
    return torch.full((50_000,), float(step))


def save(folder: Path, step: int, sharded: bool) -> None:
    def write(path: Path) -> None:
        if not sharded:
            torch.save({"state": state(step)}, path)
            return
        path.mkdir()
        for rank in range(2):
            torch.save({"state": state(step)}, path / f"__{rank}_0.distcp")

    write_checkpoint(folder / f"step_{step:06d}.ckpt", write)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of the checkpoints of a run."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_damaged_checkpoint_is_skipped_set_aside_and_told(folder, capsys, sharded):
    for step in (1, 2):
        save(folder, step, sharded)
    newest = folder / "step_000002.ckpt"
    damage(newest / "__1_0.distcp" if sharded else newest, "a bit flipped")
    good = newest_good(folder)
    assert good == folder / "step_000001.ckpt"
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert (folder / "step_000002.ckpt.damaged").exists()
    save(folder, 2, sharded)  # the run comes by again
    assert newest_good(folder) == newest
    assert damage_reason(newest) is None


def test_each_rank_sums_its_own_files_and_all_agree_on_the_checkpoint(folder, monkeypatch):
    for step in (1, 2):
        save(folder, step, sharded=True)
    damage(folder / "step_000002.ckpt" / "__1_0.distcp", "a bit flipped")
    summed: dict[str, set[str]] = {"0": set(), "1": set()}

    def noted(file: Path) -> str:
        summed[threading.current_thread().name].add(f"{file.parent.name}/{file.name}")
        return sum_of(file)

    monkeypatch.setattr("ablations.files.manifest.sum_of", noted)

    def start(ranks: ThreadRanks) -> StartPoint | None:
        threading.current_thread().name = str(ranks.rank)
        run_start = RunStart(ranks)
        if ranks.rank > 0:
            return run_start.received()
        run_start.broadcast(StartPoint(RunFolder(folder.parent, True), newest_good(folder, ranks)))
        return None

    _, of_rank_1 = on_ranks(2, start)
    assert of_rank_1.checkpoint == folder / "step_000001.ckpt"
    assert [file.name for file in folder.glob("*.damaged")] == ["step_000002.ckpt.damaged"]
    for rank, files in summed.items():
        assert files == {f"step_{step:06d}.ckpt/__{rank}_0.distcp" for step in (1, 2)}


def test_a_file_that_one_rank_cannot_read_is_an_error_on_rank_0_and_nothing_is_set_aside(folder, monkeypatch):
    save(folder, 1, sharded=True)

    def unreadable(file: Path) -> str:
        if file.name == "__1_0.distcp":
            raise OSError(5, "Input/output error")
        return sum_of(file)

    monkeypatch.setattr("ablations.files.manifest.sum_of", unreadable)

    def start(ranks: ThreadRanks) -> StartPoint | None:
        run_start = RunStart(ranks)
        if ranks.rank > 0:
            return run_start.received()
        with pytest.raises(OSError, match="Input/output"):
            newest_good(folder, ranks)
        run_start.broadcast(None)
        return None

    assert on_ranks(2, start) == [None, None]
    assert complete(folder) == [folder / "step_000001.ckpt"]


def test_slurms_signal_saves_and_ends_the_run_as_preempted(tmp_path, compose, monkeypatch, capsys):
    original = Recorder.on_train_batch_end

    def signalled(self, trainer, module, outputs, batch, batch_idx):
        if batch.step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        original(self, trainer, module, outputs, batch, batch_idx)

    monkeypatch.setattr(Recorder, "on_train_batch_end", signalled)
    with pytest.raises(SystemExit) as left:
        train(compose("trainer.checkpoint_every=100"), [])
    assert left.value.code == 0
    assert "after step 3" in capsys.readouterr().out
    assert json.loads((tmp_path / RUN / "run.json").read_text())["status"] == "preempted"
    assert [c.name for c in complete(tmp_path / RUN / "checkpoints")] == ["step_000003.ckpt"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)  # nothing ends this process later


def test_a_job_of_slurm_goes_back_into_the_queue_and_a_preempted_one_is_left_to_slurm(monkeypatch):
    def requeues(number: int) -> bool:
        return isinstance(end_after(number), EndedByNoticeError)

    assert not requeues(signal.SIGUSR1)  # not under SLURM
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert requeues(signal.SIGUSR1)
    assert not requeues(signal.SIGTERM)
    assert requeue_command() == ["scontrol", "requeue", "7"]
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert requeue_command() == ["scontrol", "requeue", "5_3"]


def test_the_handler_of_submitit_is_called_once_the_checkpoint_is_there():
    calls = []

    def handler(number, frame):
        calls.append(number)

    handler.__module__ = "submitit.core.job_environment"
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        stop = StopSignal()
        stop.install(grace_s=60.0)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert stop.requested
        assert calls == []
        stop.hand_over()
        assert calls == [signal.SIGUSR2]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGUSR2, before)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("sharded", [False, True])
def test_what_a_killed_process_left_of_other_steps_goes_with_the_next_checkpoint(folder, sharded):
    for leftover in (f"step_000001.ckpt{DRAFT}", f"step_000002.ckpt{REMOVED}"):
        (folder / leftover).mkdir()
        (folder / leftover / "__0_0.distcp").write_bytes(b"half")
    save(folder, 3, sharded)
    assert [path.name for path in folder.iterdir()] == ["step_000003.ckpt"]


CALLBACKS = """
from collections import deque
from lightning import Callback

class Steps(Callback):
    def __init__(self, window: int = 0, early: bool = False) -> None:
        self.seen, self.window = [], window
        if early:
            self.seen = deque()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(batch.step)
        if self.window:
            self.seen = deque(self.seen, self.window)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
"""


@pytest.fixture
def stateful(tmp_path, monkeypatch) -> str:
    """A callback with a state."""
    (tmp_path / "stateful_callbacks.py").write_text(CALLBACKS)
    monkeypatch.syspath_prepend(tmp_path)
    return "+callbacks.mine={_target_: stateful_callbacks.Steps%s}"


BEST = (
    "+callbacks.best={_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: '{run}/best', "
    "filename: 'step_{step}', auto_insert_metric_name: false, monitor: rollout/accuracy, mode: max, "
    "every_n_train_steps: 1}"
)


def test_a_resumed_run_has_the_callbacks_of_one_that_never_stopped(tmp_path, compose, monkeypatch, stateful):
    states, kept = [], []
    for name in ("whole", "stopped"):
        settings = (stateful % "", BEST, "budget.steps=5", "evaluation.every=0", f"runs_dir={tmp_path / name}")
        folder = tmp_path / name / RUN.relative_to("runs")
        if name == "stopped":
            with monkeypatch.context() as patch:
                stop_in(4, patch)
                with pytest.raises(SystemExit):
                    train(compose(*settings), [])
            assert complete(folder / "checkpoints")[-1].name == "step_000003.ckpt"
        train(compose(*settings, f"resume={str(name == 'stopped').lower()}"), [])
        found = torch.load(complete(folder / "checkpoints")[-1], weights_only=False)["callbacks"]
        states.append(str(found).replace(name, ""))
        kept.append(sorted(file.name for file in (folder / "best").iterdir()))
    assert "[1, 2, 3, 4, 5]" in states[0]
    assert states[0] == states[1]
    assert kept[0] == kept[1]


def test_a_callback_whose_state_no_checkpoint_gives_back_is_named_before_the_first_step(tmp_path, compose, stateful):
    with pytest.raises(UserError, match=r"callbacks\.mine: .*collections\.deque: "):
        train(compose(stateful % ", early: true", "budget.steps=2"), [])
    assert not (tmp_path / RUN / "metrics.jsonl").exists()


def test_a_state_that_would_not_be_loaded_again_is_no_checkpoint(tmp_path, compose, stateful):
    with pytest.raises(OSError, match=r"step_000002\.ckpt.* collections\.deque; "):
        train(compose(stateful % ", window: 2", "budget.steps=2"), [])
    assert [*(tmp_path / RUN / "checkpoints").iterdir()] == []


def test_the_first_ctrl_c_asks_the_second_one_ends_and_a_press_that_comes_twice_is_one(monkeypatch, capfd):
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stop = StopSignal()
        stop.install(grace_s=0.01)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # from the terminal, and from the program that started this one
        assert (stop.requested, stop.number) == (True, signal.SIGINT)
        assert capfd.readouterr().err == "stopping after this step; press Ctrl-C again to stop at once\n"
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # a step may take longer than a scheduler's patience
        later = time.monotonic() + 2
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
