"""A study's plan is committed by its launch, alone, before its first cell."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapo_lit.config import ConfigError
from dapo_lit.runs import code_state
from dapo_lit.runs.code_state import commit_file


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    git(tmp_path, "init", "-q")
    for key, value in {"user.name": "a", "user.email": "a@b", "commit.gpgsign": "false"}.items():
        git(tmp_path, "config", key, value)
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "other").write_text("edited, not committed")
    monkeypatch.setattr(code_state, "ROOT", tmp_path)
    yield tmp_path
    code_state.code_state.cache_clear()


def test_a_plan_is_committed_alone_and_once(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan, place = tmp_path_factory.mktemp("study") / "study.json", Path("experiments/mine/runs/study.json")
    plan.write_text("[1]\n")
    commit_file(plan, place, "Register study mine")
    assert git(checkout, "show", "--format=%s", "--name-only", "HEAD").split("\n\n") == [
        "Register study mine",
        str(place),
    ]
    commit_file(plan, place, "again")
    (checkout / place).unlink()  # deleted by hand: written again, and nothing is left to commit
    commit_file(plan, place, "again")
    assert (checkout / place).read_text() == "[1]\n"
    assert git(checkout, "rev-list", "--count", "HEAD") == "1"
    plan.write_text("[1, 2]\n")  # seeds were added
    commit_file(plan, place, "Add seeds")
    assert git(checkout, "log", "--format=%s") == "Add seeds\nRegister study mine"
    assert git(checkout, "status", "--porcelain") == "?? .gitignore\n?? other"


def test_a_plan_that_git_does_not_take_is_refused_in_its_words(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_state, "ROOT", tmp_path)
    plan = tmp_path_factory.mktemp("study") / "study.json"
    plan.write_text("[]")
    with pytest.raises(ConfigError, match=r"study\.registered_in=experiments/mine: git add .*not a git"):
        commit_file(plan, Path("experiments/mine/study.json"), "Register")


@pytest.mark.parametrize("file", ["dapo_lit/step/loss.py", "ablations/designs.py", "ablations/report/html.py"])
def test_the_code_of_a_run_is_that_of_both_packages(checkout: Path, file: str) -> None:
    """An arm's settings are read in `ablations`."""
    for name in ("dapo_lit/step/loss.py", "ablations/designs.py", "ablations/report/html.py", "dapo_lit/pages/a.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x = 1\n")

    def hashed() -> str | None:
        code_state.code_state.cache_clear()
        return code_state.code_state()["code_hash"]

    before = hashed()
    (checkout / "dapo_lit/pages/a.py").write_text("x = 2\n")
    assert hashed() == before
    (checkout / file).write_text("x = 2\n")
    assert hashed() != before
