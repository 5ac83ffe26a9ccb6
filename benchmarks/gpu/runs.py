"""Trainings and servers as a user starts them, for the parts that need whole runs."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from part import ON_GPU

from dapo_lit.engines.vllm_engine.engine import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
ON_DEVICE = ("trainer.accelerator=gpu",) if ON_GPU else ("trainer.accelerator=cpu",)
QUIET = ("logger.progress=none",)


def begin(
    folder: Path, *overrides: str, log: str = "log.txt", program: tuple[str, ...] = ("-m", "dapo_lit.train")
) -> "subprocess.Popen[bytes]":
    """Starts `dapo_lit.train`, or a program that runs it, in a folder, and in a session that can be ended whole."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, *program, *ON_DEVICE, *QUIET, *overrides]
    with (folder / log).open("ab") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def train(folder: Path, *overrides: str) -> None:
    """Raises RuntimeError with the end of the log if the run fails."""
    process = begin(folder, *overrides)
    if process.wait():
        raise RuntimeError((folder / "log.txt").read_text(encoding="utf-8")[-3000:])


def serve(command: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Starts the vLLM server of a printed command on the last GPU, or on the CPU, with a small cache."""
    variables, _, words = command.partition(" vllm serve ")
    cheap = f" --enforce-eager --kv-cache-memory-bytes {2**28} "
    cheap += "--gpu-memory-utilization 0.5" if ON_GPU else "--no-enable-chunked-prefill"
    last = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[-1]}
    environment = os.environ | SETTINGS | last | dict(word.split("=") for word in variables.split())
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *shlex.split(words + cheap)]
    return subprocess.Popen(module, env=environment, stdout=log, stderr=log, start_new_session=True)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the only run below a folder, the last one of each step."""
    [file] = folder.rglob("metrics.jsonl")
    found = {(row := json.loads(line))["step"]: row for line in file.open(encoding="utf-8")}
    return [found[step] for step in sorted(found)]


def learned(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what the clock or the machine decides, and without the checksum of it all."""
    apart = ("wall_s", "crc32", "time/", "perf/", "memory/")
    return {k: v for k, v in row.items() if not k.startswith(apart)}
