"""Fixtures that every folder of tests shares."""

import copy
import gc
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache as kept
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import SMALL, start_server, stop_server

os.environ["CUDA_VISIBLE_DEVICES"] = ""
"""The suite runs on a CPU, on a machine with a GPU too, where some settings would be chosen otherwise."""
os.environ["COLUMNS"] = "118"
"""What commands print is folded as on a wide terminal, whatever the suite is started from."""
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it, and every command would inherit that

# What is heavy is imported where it is used: the process that deals the tests out reads this file and runs none.
if TYPE_CHECKING:
    from dapo_lit.config import Config

SECONDS = float(os.environ.get("TEST_SECONDS", "inf"))
"""`make test-fast` begins no test this long after the first: as many as there is time for, the nearest first."""


@kept
def started() -> float:
    """When this process was first asked: at its first test."""
    return time.monotonic()


def pytest_runtest_setup() -> None:
    if time.monotonic() - started() > SECONDS:
        pytest.skip(f"the {SECONDS:.0f} seconds are over")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """An example may take long where other processes share the cores; that is no failure."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("shared_cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("shared_cores")


FIRST = ("test_plan.py", "test_api.py", "test_shapes.py")
"""Files with tests of half a minute: begun last, one of them would run on with nothing left for the other workers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if float("inf") == SECONDS:
        items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """What the imports made stays to the end; the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """The process that deals the tests out has the one server of commands that its workers share."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        start_server()
        if find_spec("torch") is None:  # math_answers alone
            return
        # the workers too are forked from it
        worker = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("forked_worker.py"))])
        config.option.tx = [f"popen//python={worker}"] * len(config.option.tx)


def pytest_unconfigure() -> None:
    """pytest collects garbage five times at the end, which takes long with what thousands of tests leave behind."""
    stop_server()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests pass in a checkout with changes too, where a study that is no pilot is refused."""
    monkeypatch.setattr("dapo_lit.runs.code_state.CODE", ("none",))


@pytest.fixture(autouse=True)
def no_test_leaves_what_ends_the_process_later() -> Iterator[None]:
    """A write to a closed socket and a timer end it without a word, in whatever test runs then."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    assert signal.getsignal(signal.SIGPIPE) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets that DAPO_LIT_DATA names, else the sample of them that lies beside the tests."""
    folder = os.environ.get("DAPO_LIT_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else Path(__file__).parent / "data_sample"


@pytest.fixture(scope="session")
def data_file(data_dir: Path) -> Callable[[str], Path]:
    """The file of a data set; the test skips where it is not in the sample, as its licence allows no copy."""

    def find(name: str) -> Path:
        if not (data_dir / name).is_file():
            pytest.skip(f"{name} is not in the sample; DAPO_LIT_DATA must name a folder that has it")
        return data_dir / name

    return find


@pytest.fixture(scope="session")
def data_rows(data_dir: Path) -> dict[str, int]:
    """Rows of each data file."""
    return {entry["file"]: entry["rows"] for entry in json.loads((data_dir / "MANIFEST.json").read_text())}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where base policies are cached during the tests, shared by the workers."""
    given = os.environ.get("DAPO_LIT_CACHE")
    folder = Path(given) if given else tmp_path_factory.getbasetemp().parent / "dapo_lit_cache"
    os.environ["DAPO_LIT_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`made_once(name, make)`: a folder that all workers share; the first that asks for it makes what is in it."""
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(base / f"{name}.lock"):
            if not (base / f"{name}.made").exists():
                shutil.rmtree(base / name, ignore_errors=True)
                (base / name).mkdir()
                make(base / name)
                (base / f"{name}.made").touch()
        return base / name

    return folder


@pytest.fixture(scope="session")
def recorded_run(cache: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The run of recorded_step.py."""
    from recorded_step import RUN, make

    return made_once("recorded", make) / RUN


@pytest.fixture
def compose(cache: Path, tmp_path: Path) -> Callable[..., "Config"]:
    """Composes and checks a config as the command line does; runs go into the test's own folder."""
    from dapo_lit.config import parse

    def composed(*overrides: str, small: bool = True) -> "Config":
        tree = copy.deepcopy(values_of((*(SMALL if small else ()), *overrides)))
        if not any(override.startswith("runs_dir=") for override in overrides):
            tree["runs_dir"] = str(tmp_path / "runs")
        return parse(tree)

    return composed


@kept
def values_of(overrides: tuple[str, ...]) -> dict[str, Any]:
    """What Hydra makes of some overrides; many tests have the same."""
    from dapo_lit.cli.config_tree import composed_tree, resolved

    return resolved(composed_tree(overrides))
