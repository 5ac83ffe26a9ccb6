"""A study's plan is committed by its launch, alone, before its first cell."""

import subprocess
from pathlib import Path

import pytest

from dapo_lit.config import ConfigError
from dapo_lit.runs import code_state
from dapo_lit.runs.code_state import commit_file


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    for key, value in {"user.name": "a", "user.email": "a@b", "commit.gpgsign": "false"}.items():
        git(tmp_path, "config", key, value)
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "other").write_text("edited, not committed")
    monkeypatch.setattr(code_state, "ROOT", tmp_path)
    return tmp_path


def test_a_plan_is_committed_alone_and_once(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan, place = tmp_path_factory.mktemp("study") / "study.json", Path("experiments/mine/runs/study.json")
    plan.write_text("[1]\n")
    commit_file(plan, place, "Register study mine")
    assert git(checkout, "show", "--format=%s", "--name-only", "HEAD").split("\n\n") == [
        "Register study mine",
        str(place),
    ]
    commit_file(plan, place, "again")
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
    with pytest.raises(ConfigError, match=r"study\.registered_in=experiments/mine: git add refused: .*not a git repo"):
        commit_file(plan, Path("experiments/mine/study.json"), "Register")
