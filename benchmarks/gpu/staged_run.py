"""`python -m dapo_lit.train` with the seconds of its start: python staged_run.py OVERRIDES

stages.json, in the working folder, is written as each stage ends, so that a run that is ended leaves those that it had:
import, policy (read), checks, engine, probe, compilation (of layers and head, in all steps so far). A stage within
another one counts once, in the inner one.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dapo_lit.lit.fit
import dapo_lit.train
from dapo_lit.build.components import RunComponents
from dapo_lit.lit.engine_weights import EngineWeights
from dapo_lit.lit.module import DAPOModule
from dapo_lit.preflight import training

FILE = "stages.json"


class Stages:
    """Seconds by stage; the innermost one runs the clock."""

    def __init__(self) -> None:
        # Since this process started, which is when Linux made its folder.
        self.seconds: dict[str, float] = {"import": time.time() - os.stat("/proc/self").st_ctime}
        self._outer: list[str | None] = [None]
        self._since = time.perf_counter()

    def _lap(self) -> None:
        now = time.perf_counter()
        if (name := self._outer[-1]) is not None:
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            self._lap()
            self._outer.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._lap()
                self._outer.pop()
                self.write()

        return inner

    def write(self) -> None:
        rounded = {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        with suppress(OSError):  # the run matters more
            Path(FILE).write_text(json.dumps(rounded), encoding="utf-8")


def counts_compilation(stages: Stages, function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own count, as compiling is spread over the first step's passes; vLLM compiles before."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.utils import calculate_time_spent

        before = calculate_time_spent()["total_wall_time"]
        result = function(*args, **kwargs)
        spent = calculate_time_spent()["total_wall_time"] - before
        stages.seconds["compilation"] = stages.seconds.get("compilation", 0.0) + spent
        stages.write()
        return result

    return inner


def main() -> None:
    stages = Stages()
    stages.write()
    # Read once a run, whoever asks first.
    policy = functools.cached_property(stages.timed("policy", RunComponents.policy.func))
    policy.__set_name__(RunComponents, "policy")
    RunComponents.policy = policy
    RunComponents.engine = stages.timed("engine", RunComponents.engine)
    training.check_run = stages.timed("checks", training.check_run)
    EngineWeights._probe = stages.timed("probe", EngineWeights._probe)
    DAPOModule.make_updates = counts_compilation(stages, DAPOModule.make_updates)
    dapo_lit.train.main()


if __name__ == "__main__":
    main()
