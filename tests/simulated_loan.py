"""A loan of a GPU without the GPU: the campaign's own code, with a clock and processes that are made up.

What a process does follows from what was drawn for the loan: whether CUDA graphs crash and where, by how much the
forecast of memory is off, how slow each stage is, what TRL does. The seconds are estimates, no measurements.
"""

import json
import math
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

STARTS = {"import": 14.0, "policy": 5.0, "checks": 15.0, "engine": 25.0, "probe": 5.0}
"""Seconds of the stages before the first step of 0.5B, without CUDA graphs."""
CAPTURE_S, COMPILATION_S = 45.0, 45.0
"""More for an engine with CUDA graphs; for a policy that is compiled."""
STEP_S = {"0.5B": 16.0, "1.5B": 24.0, "7B": 29.0}
"""Of a step with CUDA graphs: the forecast."""
LAUNCHES_S = 10.0
"""More for a step without."""
BY_SIZE = {"0.5B": 1.0, "1.5B": 1.3, "7B": 1.7}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass(frozen=True)
class Draw:
    """What one loan has in store."""

    graphs: str
    """works; crashes: in the first forward pass; hangs."""
    compiles: bool
    """False: compiled layers crash in the first update."""
    halvings: dict[str, int]
    """That the micro-batch of a size needs."""
    trl: str
    """works; fails; hangs."""
    probe: str
    """works; fails; hangs; or crashes: as it should when workspaces are freed."""
    pace: float
    """Of the whole machine: seconds for an estimated one."""
    paces: tuple[float, ...]
    """Of each process in turn."""

    @classmethod
    def of(cls, seed: int) -> "Draw":
        draw = random.Random(seed)

        def one(**shares: float) -> str:
            return draw.choices(list(shares), list(shares.values()))[0]

        return cls(
            graphs=one(works=0.4, crashes=0.5, hangs=0.1),
            compiles=draw.random() < 0.9,
            halvings={size: draw.choices([0, 1, 2], [0.65, 0.25, 0.1])[0] for size in STEP_S},
            trl=one(works=0.4, fails=0.3, hangs=0.3),
            probe=one(works=0.3, crashes=0.4, fails=0.15, hangs=0.15),
            pace=math.exp(draw.gauss(0.0, 0.2)),
            paces=tuple(math.exp(draw.gauss(0.0, 0.15)) for _ in range(64)),
        )


class Process:
    """Ends after some seconds with a code (None: never), and leaves files on the way."""

    pid = -1

    def __init__(self, clock: Clock, seconds: float, code: int | None, files: list[tuple[float, Path, str]]) -> None:
        self.clock, self.began, self.seconds, self.files = clock, clock.now, seconds, files
        self.code: int | None = code

    def wait(self, timeout: float | None = None) -> int:
        ends = math.inf if self.code is None else self.began + self.seconds
        until = ends if timeout is None else min(ends, self.clock.now + timeout)
        assert until < math.inf
        self.clock.now = max(self.clock.now, until)
        for at, path, text in self.files:
            if self.began + at <= self.clock.now:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(text)
        self.files = []
        if until < ends:
            raise subprocess.TimeoutExpired("simulated", timeout or 0.0)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        self.code, self.seconds = -9, 0.0


class Loan:
    """Puts the simulation in the campaign's place; `run` is a loan with its two commands."""

    def __init__(self, campaign: ModuleType, draw: Draw, monkeypatch: Any) -> None:
        self.campaign, self.draw, self.clock, self.begun = campaign, draw, Clock(), 0
        patched = {
            "begin": self.train, "begin_command": self.command, "installed": lambda *names: True,
            "time": SimpleNamespace(monotonic=self.clock.monotonic, strftime=lambda form: "2026-01-01"),
            "os": SimpleNamespace(killpg=self.no_group, environ={}),
            "written": self.written, "machine": lambda threads: {}, "versions": lambda *names: {},
        }  # fmt: skip
        for name, value in patched.items():
            monkeypatch.setattr(campaign, name, value)

    def no_group(self, pid: int, number: int) -> None:
        raise ProcessLookupError

    def written(self, campaign: Any, size: str) -> Path:
        known = self.__dict__.setdefault("policies", set())
        if size not in known:
            self.clock.now += 15.0 * BY_SIZE[size] * self.draw.pace
            known.add(size)
        return Path("policy")

    def pace(self) -> float:
        self.begun += 1
        return self.draw.pace * self.draw.paces[self.begun % len(self.draw.paces)]

    def command(self, folder: Path, *command: str) -> Process:
        """The probe, TRL, the product."""
        name, pace, draw = " ".join(command), self.pace(), self.draw
        folder.mkdir(parents=True)
        log = folder / "log.txt"
        log.write_text("the end of its log\n", encoding="utf-8")
        if "graph_probe" in name:
            found = {"after_capture": 0.008, "after_blocked_clear": 0.008, "after_real_clear": 0.008}
            if draw.probe == "crashes":
                found |= {"after_real_clear": None}
            if draw.graphs == "crashes" and draw.probe == "fails":
                found = {"after_capture": 0.008, "after_blocked_clear": None}
            text = json.dumps(found)
            code = None if draw.probe == "hangs" else int(None in found.values())
            return Process(self.clock, 65.0 * pace, code, [(60.0 * pace, folder / "probe.json", text)])
        if "trl_step" in name:
            text = json.dumps({"s_a_step": 17.0 * pace, "steps": 2, "tokens_per_s": 1.0})
            files = [(110.0 * pace, folder / "trl.json", text)] if draw.trl == "works" else []
            return Process(
                self.clock, (120.0 if files else 60.0) * pace, {"works": 0, "fails": 1, "hangs": None}[draw.trl], files
            )
        return Process(self.clock, 12.0 * pace, 0, [(11.0 * pace, log, "778.0\n")])

    def train(self, folder: Path, *overrides: str, **_: Any) -> Process:
        """A run of whole steps."""
        draw, pace = self.draw, self.pace()
        of = dict(override.partition("=")[::2] for override in overrides)  # the last one of a key counts
        part = self.campaign.STEP_PARTS[folder.name]
        graphs, compiles = self.campaign.NO_GRAPHS not in overrides, of["trainer.compile"] == "true"
        scale, at, stages = BY_SIZE[part] * pace, 0.0, {}
        for name, seconds in STARTS.items():
            seconds += CAPTURE_S if graphs and name == "engine" else 0.0
            at, stages[name] = at + seconds * scale, seconds
        log, files, code = folder / "log.txt", [(at, folder / "stages.json", json.dumps(stages))], 0
        folder.mkdir(parents=True)
        log.write_text("the end of its log\n", encoding="utf-8")
        fits = self.campaign.FITS[part] >> draw.halvings[part]
        if graphs and draw.graphs != "works":
            return Process(self.clock, at, 1 if draw.graphs == "crashes" else None, files)
        metrics = folder / "run" / "metrics.jsonl"
        files.append((at, metrics, json.dumps({"step": 0}) + "\n"))
        for step in range(1, int(of["budget.steps"]) + 1):
            at += (STEP_S[part] + LAUNCHES_S * (not graphs) + COMPILATION_S * (compiles and step == 1)) * pace
            if int(of["trainer.micro_batch_tokens"]) > fits:
                files.append((at, log, "torch.OutOfMemoryError: CUDA out of memory.\n"))
                return Process(self.clock, at, 1, files)
            if compiles and not draw.compiles:
                files.append((at, log, "torch._inductor.exc.InductorError: no\n"))
                return Process(self.clock, at, 1, files)
            files.append((at, metrics, json.dumps({"step": step}) + "\n"))
        return Process(self.clock, at + 3.0, code, files)

    def run(self, out: Path, forecasts: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of a loan whose commands end by their own limit."""
        c = self.campaign
        c.FITS = {size: forecasts[part][f"{size}, step 2"]["micro_batch_tokens"] for part, size in c.STEP_PARTS.items()}
        parts = {name: part for name, part in c.PARTS.items() if name in (*c.STEP_PARTS, "probe", "product", "trl")}
        ends, run = c.LOAN_S - c.START_S, None
        while self.clock.now < ends - 10:
            began, run = self.clock.now, c.Campaign(out, tiny=False, forecasts=forecasts)
            left = {name: part for name, part in parts.items() if name not in run.ended_parts()}
            run.run_all(left, c.CAPS, min(c.COMMAND_S, ends - self.clock.now))
            if not left or self.clock.now == began:
                break
            self.clock.now += 5.0
        assert run is not None
        return list(run.rows)
