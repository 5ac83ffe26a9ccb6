"""A rank that has died or hangs is named, and the others end."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
import torch.distributed as dist
from command_line import SMALL, Command

from ablations.errors import UserError
from dapo_lit.cli.command import compose
from dapo_lit.lit import processes
from dapo_lit.lit.processes import Place, joined, lost_rank_named
from dapo_lit.ranks import LostRankError, open_files
from dapo_lit.ranks import watch as rank_watch
from dapo_lit.ranks.open_files import allow_files
from dapo_lit.ranks.watch import RankWatch

TWO_RANKS = (
    *SMALL, "trainer=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.sharding.dtype=null",
    "trainer.threads=1", "evaluation.every=0",
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(runs: Path, *overrides: str) -> tuple[list[Command], Path]:
    """A run on two ranks, and its folder."""
    port, ranks = str(free_port()), []
    for rank in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
            for name, value in (place | {"RANK": rank, "LOCAL_RANK": rank}).items():
                patch.setenv(name, value)
            command = (*TWO_RANKS, f"runs_dir={runs}", *overrides)
            ranks.append(Command(*command, cwd=Path(__file__).parent))
    return ranks, runs / "four_sums" / "dapo" / "seed_0"


def test_a_rank_that_is_killed_in_a_step_ends_the_other_within_a_minute_by_name(tmp_path, cache):
    (first, second), folder = start(tmp_path, "budget.steps=5000", "trainer.checkpoint_every=1000")
    written, deadline = folder / "metrics.jsonl", time.monotonic() + 200
    while not (written.is_file() and written.read_text().count("\n") > 2):
        assert all(rank.poll() is None for rank in (first, second)), [first.output("stderr"), second.output("stderr")]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second.send_signal(signal.SIGKILL)
    ended = first.wait(timeout=60)
    assert ended.returncode == 1
    message = f"rank 1 (process {second.pid}) has ended; continue with resume=true"
    assert f"error: {message}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert message in (folder / "run.json").read_text()


def test_the_processes_of_a_first_rank_that_fails_end_with_it(monkeypatch):
    """Before the group exists, too; one that ignores the request is killed."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    started: list[subprocess.Popen[bytes]] = []

    def start_others(size: int) -> tuple[Place, list[subprocess.Popen[bytes]]]:
        commands = [[sys.executable, "-c", stubborn], ["sleep", "600"]]
        started.extend(subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands)
        assert started[0].stdout is not None
        started[0].stdout.readline()
        return Place(0, 0, size), started

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(processes, "start_others", start_others)
    monkeypatch.setattr(processes, "rendezvous", fails)
    monkeypatch.setattr(processes, "END_S", 0.5)
    trainer = compose(*TWO_RANKS, "trainer.devices=3").trainer
    with pytest.raises(RuntimeError, match="no device"), joined(trainer):
        pass
    assert [child.returncode for child in started] == [-signal.SIGKILL, -signal.SIGTERM]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The exit codes of the watches, by the line that each printed; ticks are short."""
    found: dict[str, int] = {}
    printed: list[str] = []
    monkeypatch.setattr(rank_watch, "TICK_S", 0.02)
    monkeypatch.setattr(rank_watch, "LEAVE_S", 0.1)
    monkeypatch.setattr("builtins.print", lambda text, **_: printed.append(text))

    def leave(code: int) -> None:
        found[printed.pop()] = code
        raise SystemExit  # ends the thread

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's shows SystemExit as a fault
    return found


def wait_for(ends: dict[str, int], count: int) -> list[str]:
    deadline = time.monotonic() + 20
    while len(ends) < count:
        assert time.monotonic() < deadline, ends
        time.sleep(0.01)
    assert set(ends.values()) == {1}
    return sorted(ends)


def stores(size: int) -> list[dist.TCPStore]:
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10))
    return [first, *(dist.TCPStore("127.0.0.1", first.port, is_master=False) for _ in range(size - 1))]


def test_a_rank_that_hangs_ends_all_others_with_one_verdict(ends):
    made = stores(3)
    made[2].set("process/2", "another machine 7")  # joined, and silent ever after
    made[2].add("beat/2", 1)
    watches = [RankWatch(rank, 3, []) for rank in (0, 1)]
    made[1].set("process/1", "another machine 8")
    for watch, store in zip(watches, made, strict=False):
        watch.joined(store)
    lines = wait_for(ends, 2)
    lost = "error: rank 2 sent no heartbeat for 0 s"
    assert [line.split(";")[0] for line in lines] == [lost, lost]
    assert ["rank 0 ends" in lines[0], "rank 1 ends" in lines[1]] == [True, True]
    with pytest.raises(LostRankError, match="rank 2"), lost_rank_named(watches[0].lost):
        raise RuntimeError("Connection closed by peer")


def test_ranks_that_live_are_left_alone_also_at_their_end(ends):
    made = stores(2)
    watches = [RankWatch(rank, 2, []) for rank in (0, 1)]
    made[1].set("process/1", "another machine 8")
    for watch, store in zip(watches, made, strict=True):
        watch.joined(store)
    Event().wait(1.0)
    assert all(watch._thread.is_alive() for watch in watches)
    for watch in watches:
        watch.close()
    assert not ends
    assert watches[0].lost() is None


def test_all_ranks_end_where_the_launcher_that_keeps_the_store_has_ended(ends):
    keeps = "import torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True); print(s.port, flush=True)"
    agent = subprocess.Popen([sys.executable, "-c", f"{keeps}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    port = int(agent.stdout.readline())
    watches = [RankWatch(rank, 2, []) for rank in (0, 1)]
    made = [dist.TCPStore("127.0.0.1", port, is_master=False) for _ in watches]
    for rank, store in enumerate(made):
        store.set(f"process/{rank}", f"another machine {rank}")
    for watch, store in zip(reversed(watches), reversed(made), strict=True):
        watch.joined(store)
    agent.kill()
    lines = wait_for(ends, 2)
    assert all("store of the process group" in line for line in lines)
    assert [f"rank {rank} ends as well" in line for rank, line in enumerate(lines)] == [True, True]


def test_machines_of_one_name_and_one_space_of_processes_are_told_apart(monkeypatch):
    before = rank_watch._machine()
    read = rank_watch.read_text
    monkeypatch.setattr(rank_watch, "read_text", lambda file: read(file).replace("-", "+"))
    assert rank_watch._machine() != before


def test_a_child_that_dies_before_there_is_a_group_ends_the_run_and_the_other_children(ends):
    dying, waiting = ([sys.executable, "-c", code] for code in ("exit(3)", "import time; time.sleep(60)"))
    children = [subprocess.Popen(command) for command in (dying, waiting)]
    RankWatch(0, 3, children)
    [line] = wait_for(ends, 1)
    assert line.startswith(f"error: rank 1 (process {children[0].pid}) ended with exit code 3; rank 0 ")
    assert children[1].wait(10) == -signal.SIGKILL


def test_a_rank_whose_starter_has_died_ends(ends, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setenv(rank_watch.STARTED_BY, str(gone.pid))
    RankWatch(1, 2, [])
    [line] = wait_for(ends, 1)
    assert f"rank 0 (process {gone.pid}) has ended; rank 1 " in line


def test_the_limit_on_open_files_is_raised_for_the_groups_or_the_run_is_refused_by_name(monkeypatch, compose):
    limits = [200, 400]
    monkeypatch.setattr(open_files, "OTHER_FILES", 76)  # with the groups of one process: 100
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    allow_files(1)
    assert limits == [200, 400]
    allow_files(1, connections=200)
    assert limits == [300, 400]
    with pytest.raises(UserError, match=r"401 open files .* allows 400"):
        allow_files(1, connections=301)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # or the run would start the others
        monkeypatch.setenv(name, "0")
    large = compose("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=1000")
    with pytest.raises(UserError, match="open files"), joined(large.trainer):
        pass  # refused before a process is started


def test_a_first_rank_whose_machine_is_not_known_is_named_and_not_looked_for(monkeypatch, compose):
    place = {"MASTER_ADDR": "first.invalid", "MASTER_PORT": "1", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    two = compose("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.sharding.dtype=null")
    with pytest.raises(UserError, match=r"MASTER_ADDR=first\.invalid"), joined(two.trainer):
        pass


def test_ranks_that_torchrun_starts_again_do_not_read_the_fate_of_those_before(ends, monkeypatch, compose):
    """Its agent keeps the store over `--max-restarts`."""
    [store] = stores(1)
    store.set("lost", "rank 1 has ended")
    place = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
    }  # fmt: skip
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    one = compose("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.sharding.dtype=null")
    with joined(one.trainer):
        Event().wait(0.5)
    assert not ends
