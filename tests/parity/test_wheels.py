"""The wheels that a GPU machine is given for the peers lack nothing that these need."""

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

WHEELS = Path(__file__).parents[2] / "benchmarks/gpu/wheels.txt"
ON_MACHINE = ("torch", "transformers", "accelerate", "pandas", "pyarrow", "triton")
"""What such a machine has, with what these need."""


def closure(packages: tuple[str, ...]) -> set[str]:
    """Packages with all that they ask for on this platform, without extras; torch's CUDA libraries are not here."""
    found, waiting = set[str](), set(packages)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        found.add(name)
        try:
            asked = map(Requirement, importlib.metadata.requires(name) or [])
        except importlib.metadata.PackageNotFoundError:
            continue
        needs = {r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})}
        waiting |= {re.sub(r"[-_.]+", "-", need).lower() for need in needs} - found
    return found


def test_the_peers_that_a_gpu_machine_is_given_find_all_that_they_import():
    brought = {line for line in WHEELS.read_text().splitlines() if not line.startswith("#")}
    assert {"trl", "liger-kernel"} <= brought
    assert closure(("trl", "liger-kernel")) - closure(ON_MACHINE) <= brought
