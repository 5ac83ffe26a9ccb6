"""What is in the distributions, and that an installed wheel starts from the same weights as a checkout, anywhere."""

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from command_line import run_cli, run_python
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from small_runs import untimed

ROOT = Path(__file__).parents[2]
PACKAGES = ("dapo_lit", "dapo_lit_tools", "ablations", "math_answers")
PROJECT = {"ablations/pyproject.toml", "math_answers/pyproject.toml"}
"""By which a package is installed without the others; here it comes with them."""
TOP = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", ".gitignore", "PKG-INFO"}
"""Files at the top of the source distribution; the last three are hatchling's own choice."""


def tracked(*folders: str) -> set[str]:
    """Files of the checkout that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file() and name != "math_answers/pyproject.toml"}


SITE = ("docs/site/", "docs/play/train/", "docs/stylesheets/", "docs/javascripts/")
"""What makes the site of the pages."""
PAGES = {name for name in tracked("docs") if not name.startswith(SITE)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, as pip would install them."""
    folder = tmp_path_factory.mktemp("wheel")
    (file,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    zipfile.ZipFile(file).extractall(folder / "installed")
    return folder / "installed"


def test_the_source_distribution_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    (file,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == tracked(*PACKAGES, "conf") - PROJECT | PAGES | TOP


def test_the_wheel_has_the_package_with_its_configs_and_base_policies(wheel: Path) -> None:
    found = {str(file.relative_to(wheel)) for file in wheel.rglob("*") if file.is_file()}
    configs = {f"dapo_lit/{name}" for name in tracked("conf")}
    pages = {f"dapo_lit/pages/{name.removeprefix('docs/')}" for name in PAGES}
    own = {name for name in found if ".dist-info/" not in name}
    assert own == tracked(*PACKAGES) - PROJECT | configs | pages
    assert sum(name.startswith("dapo_lit/base_policies/") and name.endswith(".safetensors") for name in own) == 8


def started(
    folder: Path, package: Path | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """run.json and rows of two small steps of the main job, trained in `folder`.

    package: folder of the package; None: the checkout's, by a process that has imported it already.
    """
    overrides = (
        "+experiment=dapo", "+regime=joint", "budget.steps=2", "algorithm.num_prompts=4",
        "algorithm.minibatch_prompts=2", "task.num_heldout=8", "evaluation.samples=1", "preflight=false",
    )  # fmt: skip
    monkeypatch.setenv("DAPO_LIT_CACHE", str(folder / "cache"))
    if package:
        monkeypatch.setenv("PYTHONPATH", str(package))
    done = (run_python if package else run_cli)(*overrides, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "cache").exists()  # nothing was pre-trained
    run = folder / "runs" / "dapo" / "dapo" / "seed_0"
    return json.loads((run / "run.json").read_text()), untimed(run)


def test_a_command_gives_the_same_bits_in_the_checkout_elsewhere_and_from_a_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With folders of base policies near it that a search would find."""
    decoy = tmp_path / "elsewhere" / "experiments" / "bases" / "decoy"
    for shipped in (ROOT / "dapo_lit" / "base_policies").glob("base-*"):
        (decoy / shipped.name).mkdir(parents=True)
        (decoy / shipped.name / "model.safetensors").write_bytes(b"other weights")
    (tmp_path / "empty").mkdir()
    record, rows = started(tmp_path / "elsewhere", None, monkeypatch)
    other, from_wheel = started(tmp_path / "empty", wheel, monkeypatch)
    assert from_wheel == rows
    assert len(rows) == 3
    assert record["code_hash"] == other["code_hash"]
    assert record["base_weights"] == other["base_weights"]
    assert str(record["base_origin"]).startswith("shipped with dapo_lit")
