"""Running commands as a user does; in a module of its own, because `conftest` is the name of several files."""

import subprocess
import sys
from pathlib import Path

SMALL = (
    "+experiment=four_sums",
    "algorithm.num_prompts=4",
    "algorithm.minibatch_prompts=2",
    "budget.steps=6",
    "evaluation.samples=2",
    "trainer.checkpoint_every=2",
    "logger.rollouts_every=3",
    "logger.progress=none",
)
"""A run of seconds: four questions, a random policy, two updates a step."""


def run_cli(
    *arguments: str, cwd: Path, module: str = "dapo_lit.train", timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user would, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
