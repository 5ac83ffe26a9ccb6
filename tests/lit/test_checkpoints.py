"""A kill while a checkpoint is written, a damaged checkpoint, and the signals that ask a run to leave."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from dapo_lit.lit.callbacks import Recorder
from dapo_lit.runs.checkpoint_files import complete, fault, newest_good, write_checkpoint
from dapo_lit.runs.preemption import StopSignal, requeue_command
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


def load(checkpoint: Path) -> list[torch.Tensor]:
    files = sorted(checkpoint.glob("*.distcp")) if checkpoint.is_dir() else [checkpoint]
    return [torch.load(file)["state"] for file in files]


def write_for_ever(folder: Path, first: int, sharded: bool, told: int) -> None:
    """Writes a byte to `told` before the first checkpoint and after each."""
    os.write(told, b".")
    for step in range(first, first + 10_000):
        save(folder, step, sharded)
        os.write(told, b".")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of the checkpoints of a run."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_writer_that_is_killed_10_times_always_leaves_a_whole_checkpoint(folder, sharded):
    started = time.perf_counter()
    save(folder, 1, sharded)
    save_s = time.perf_counter() - started
    noise = random.Random(sharded)
    last, interrupted = 1, 0
    for _ in range(10):
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_for_ever(folder, last + 1, sharded, writable)
            finally:
                os._exit(1)  # never back into the tests
        for _ in range(1 + noise.randrange(3)):
            os.read(readable, 1)
        time.sleep(noise.uniform(0.0, save_s))
        os.kill(child, signal.SIGKILL)
        os.close(readable)
        os.close(writable)
        os.waitpid(child, 0)
        interrupted += any(folder.glob("*.part"))
        good = newest_good(folder)
        assert good is not None
        step = int(good.stem.removeprefix("step_"))
        assert step >= last
        for tensor in load(good):
            assert torch.equal(tensor, state(step))
        assert not list(folder.glob("*.damaged"))  # not even one that had to be set aside
        last = step
    save(folder, last + 1, sharded)
    assert len(complete(folder)) == 2
    assert last > 3
    assert interrupted > 0  # it was killed while it wrote, or the test says nothing


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_skipped_set_aside_and_told(folder, capsys, damage, sharded):
    for step in (1, 2):
        save(folder, step, sharded)
    newest = folder / "step_000002.ckpt"
    file = newest / "__1_0.distcp" if sharded else newest
    content = bytearray(file.read_bytes())
    match damage:
        case "cut":
            content = content[: len(content) // 2]
        case "flipped":
            content[len(content) // 2] ^= 1
        case "empty":
            content = bytearray()
    file.write_bytes(bytes(content))
    good = newest_good(folder)
    assert good == folder / "step_000001.ckpt"
    assert f"{newest} is damaged" in capsys.readouterr().out
    assert (folder / "step_000002.ckpt.damaged").exists()
    save(folder, 2, sharded)  # the run comes by again
    assert newest_good(folder) == newest
    assert fault(newest) is None


def test_a_kill_between_the_renames_of_a_replacement_gives_the_older_checkpoint_its_name_back(folder):
    save(folder, 1, sharded=True)
    final = folder / "step_000001.ckpt"
    final.rename(folder / "step_000001.ckpt.replaced")
    assert newest_good(folder) == final
    assert torch.equal(load(final)[0], state(1))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_slurms_signals_save_and_end_the_run_as_preempted(tmp_path, compose, monkeypatch, capsys, number):
    original = Recorder.on_train_batch_end

    def signalled(self, trainer, module, outputs, batch, batch_idx):
        if batch.step == 3:
            os.kill(os.getpid(), number)
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
    stop = StopSignal()
    stop.number = signal.SIGUSR1
    assert not stop.wants_requeue  # not under SLURM
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert stop.wants_requeue
    assert requeue_command() == ["scontrol", "requeue", "7"]
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert requeue_command() == ["scontrol", "requeue", "5_3"]
    stop.number = signal.SIGTERM
    assert not stop.wants_requeue


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
