"""The Containerfile has the steps of CI, and nothing that the Makefile and the package do not know."""

import json
import re
import shlex
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of every instruction, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line.strip()]


def of(keyword: str) -> list[str]:
    return [rest for word, rest in instructions() if word == keyword]


def test_it_is_built_of_instructions_that_there_are_and_starts_from_a_supported_python():
    assert {word for word, _ in instructions()} <= {"FROM", "RUN", "USER", "WORKDIR", "COPY", "CMD"}
    assert instructions()[0][0] == "FROM"
    (image,) = of("FROM")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert re.fullmatch(r"docker\.io/library/python:(\d+\.\d+)-slim-\w+", image)[1] in supported


def test_its_steps_are_those_of_ci():
    (installs,) = [step for step in of("RUN") if step.startswith("make ")]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(installs.split()[1:]) <= targets
    (command,) = map(json.loads, of("CMD"))
    assert command == [".ci/run"]
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o100
    lines = re.findall(r"^make .*", script.read_text(), flags=re.MULTILINE)
    steps = [word for line in lines for word in shlex.split(line)[1:] if not re.match(r"-|[A-Z_]+=", word)]
    assert (
        {"lint", "test", "test-wheel", "test-pages", "site", "gpu-dry", "parity", "test-vllm"} <= set(steps) <= targets
    )
    # What those steps call, besides Python and what is installed with it.
    (packages,) = [step for step in of("RUN") if "apt-get install" in step]
    assert {"git", "make"} <= set(packages.split())


def test_it_does_not_run_as_root_and_copies_no_environment():
    order = [word for word, _ in instructions()]
    assert order.index("USER") < order.index("COPY")
    ignored = (ROOT / ".containerignore").read_text().split()
    assert {".venv*/", "/runs/", "/models/"} <= set(ignored)
    # Tests ask git for the files of the checkout.
    assert not any(line.startswith(".git") for line in ignored)
