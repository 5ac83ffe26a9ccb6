"""The job of two training and two sampling machines on loopback: its script, a fake scheduler, and servers with the
routes of vLLM that sample at random. One of the servers and then one of the trainers is killed in the middle of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_slurm
import pytest

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "docs" / "examples" / "slurm"
RUN = (
    "+experiment=four_sums", "policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32",
    "rollout.max_batch_size=16", "trainer=fsdp", "trainer.accelerator=cpu", "trainer.sharding.dtype=null",
    "trainer.threads=1", "trainer.timeout_min=5", "trainer.checkpoint_every=1", "algorithm.num_prompts=6",
    "algorithm.minibatch_prompts=3", "evaluation.samples=1", "evaluation.every=0", "logger.progress=none",
    "algorithm.techniques.dynamic_sampling=false", "preflight=false",  # which would find that the engine is a fake
)  # fmt: skip
SERVER = f'exec {sys.executable} {ROOT / "tests" / "plain_vllm_server.py"} "$@"'
DEADLINE_S = 2400


class Job:
    """A job that the fake scheduler runs, on so many machines that train and others that run a server each."""

    def __init__(self, folder: Path, train: int, servers: int, *overrides: str) -> None:
        self.folder, self.log = folder, folder / f"job_{train}_{len(list(folder.glob('job_*')))}.log"
        environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "SLURM_JOB_ID": "4242",
            "SLURM_CPUS_PER_TASK": "1",
            "PYTHON": sys.executable,
            "TRAIN": str(train),
            "GPUS": "0",
            "HELP": str(SLURM),
            "SLURM_JOB_NODELIST": ",".join(f"127.0.0.{n + 1}" for n in range(train + servers)),
            "OMP_NUM_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        script = ["timeout", str(DEADLINE_S), "bash", str(SLURM / "two_nodes.sbatch"), *RUN, *overrides]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(  # `timeout` starts the script, as slurmstepd does
                script, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not happened():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < until, self.log.read_text()[-4000:]
            time.sleep(0.2)

    def leaves_nothing(self) -> None:
        until = time.monotonic() + 240  # on a loaded machine
        while processes(self.folder):
            assert time.monotonic() < until, self.log.read_text()[-4000:]
            time.sleep(0.5)


def processes(folder: Path, *words: str) -> list[int]:
    """Processes of the jobs in a folder, with these words in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                line = (entry / "cmdline").read_text().replace("\0", " ")
                if all(word in line for word in words):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.rglob("metrics.jsonl") for line in file.read_text().splitlines()]


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in rows(folder)]


@pytest.fixture
def folder(cache, tmp_path):
    made = tmp_path.resolve()
    fake_slurm.install(made / "bin", SERVER)
    yield made
    for process in processes(made):
        os.kill(process, signal.SIGKILL)


def test_a_job_two_steps_behind_its_servers_survives_one_and_resumes_on_fewer_machines_after_a_trainer(folder):
    behind = "rollout.steps_ahead=2"
    job = Job(folder, 2, 2, "budget.steps=2000", behind)  # a server takes longer to start than dozens of steps
    job.wait_for(lambda: max(steps(folder), default=0) >= 4)
    trained = rows(folder)[1:5]
    assert [row["sampling/staleness_max"] for row in trained] == [0, 1, 2, 2]
    assert [row["sampling/stale_tokens_frac"] for row in trained] == [0, 1, 1, 1]
    assert all(row["loss/policy"] is not None for row in trained)
    [server] = processes(folder, "server", "--host 127.0.0.3")
    os.kill(server, signal.SIGKILL)
    killed_at = max(steps(folder))
    job.wait_for(lambda: max(steps(folder)) >= killed_at + 2)
    assert "lost" in job.log.read_text()
    job.wait_for(lambda: "the server at 127.0.0.3:8000 ended and is started again" in job.log.read_text())
    job.wait_for(lambda: "http://127.0.0.3:8000 answers again" in job.log.read_text())
    trainer = max(processes(folder, "dapo_lit.train"))
    os.kill(trainer, signal.SIGKILL)
    code = job.process.wait(DEADLINE_S)
    assert code != 0, job.log.read_text()[-2000:]
    job.leaves_nothing()
    reached = max(steps(folder))
    again = Job(folder, 1, 1, f"budget.steps={reached + 2}", behind)
    assert again.process.wait(DEADLINE_S) == 0, again.log.read_text()[-4000:]
    assert "continuing from" in again.log.read_text()
    assert sorted(set(steps(folder))) == list(range(reached + 3))  # no step is missing
