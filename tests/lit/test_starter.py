"""A rank that torchrun or srun started ends when that process dies, since nobody else would end it."""

import os
import signal
import subprocess
import sys
import time

from test_rank_watch import TWO_RANKS, free_port

STARTER = """
import os, subprocess, sys, time
def start(rank):
    place = dict(os.environ, RANK=rank, LOCAL_RANK=rank)
    return subprocess.Popen([sys.executable, "-m", "dapo_lit.train", *sys.argv[1:]], env=place)
ranks = [start("0"), start("1")]
print(*(rank.pid for rank in ranks), flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path, cache):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    overrides = [*TWO_RANKS, f"runs_dir={tmp_path}", "budget.steps=5000", "trainer.checkpoint_every=1000"]
    log = tmp_path / "log"
    with log.open("w") as errors:
        starter = subprocess.Popen(
            [sys.executable, "-c", STARTER, *overrides], env=os.environ | place, stdout=subprocess.PIPE, stderr=errors,
            text=True,
        )  # fmt: skip
    assert starter.stdout is not None
    ranks = [int(process) for process in starter.stdout.readline().split()]
    try:
        metrics, deadline = tmp_path / "four_sums" / "dapo" / "seed_0" / "metrics.jsonl", time.monotonic() + 200
        while not (metrics.is_file() and metrics.read_text().count("\n") > 1):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        starter.kill()
        starter.wait()
        deadline = time.monotonic() + 60
        while any(map(is_running, ranks)):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        assert "the process that started rank" in log.read_text()
    finally:
        starter.kill()
        for rank in filter(is_running, ranks):
            os.kill(rank, signal.SIGKILL)
