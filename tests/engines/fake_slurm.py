"""`srun` and `scontrol` on one machine, whose nodes are addresses of loopback."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path


def install(folder: Path, vllm: str) -> None:
    """Writes the programs into a folder for PATH; `vllm` is the shell command that runs in its place."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "srun": f'exec {sys.executable} {Path(__file__).resolve()} srun "$@"',
        "scontrol": f'exec {sys.executable} {Path(__file__).resolve()} scontrol "$@"',
        "vllm": vllm,
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)


def scontrol(arguments: list[str]) -> int:
    if arguments[:2] == ["show", "hostnames"]:
        print("\n".join(arguments[2].split(",")))
    return 0


def srun(arguments: list[str]) -> int:
    options: dict[str, str] = {}
    while arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).removeprefix("--").partition("=")
        options[name] = value
    nodes, tasks = options["nodelist"].split(","), int(options["ntasks"])
    assert len(nodes) == int(options["nodes"])
    per_node = int(options.get("ntasks-per-node", tasks))
    children = []
    for rank in range(tasks):
        own = {
            "SLURM_PROCID": rank, "SLURM_LOCALID": rank % per_node, "SLURM_NODEID": rank // per_node,
            "SLURM_NTASKS": tasks, "SLURM_NTASKS_PER_NODE": per_node,
            "SLURM_NODELIST": os.environ["SLURM_JOB_NODELIST"], "SLURM_JOB_NAME": "rehearsal",
        }  # fmt: skip
        environment = os.environ | {k: str(v) for k, v in own.items()}
        children.append(subprocess.Popen(arguments, env=environment, start_new_session=True))

    def stop(number: int, frame: object) -> None:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, number)  # SLURM signals all processes of a task

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, stop)
    while any(child.poll() is None for child in children):
        if "kill-on-bad-exit" in options and any(child.poll() for child in children):
            stop(signal.SIGKILL, None)
        time.sleep(0.1)
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
