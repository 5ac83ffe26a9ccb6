"""The state of the code that runs: its commit, what differs from it, and a hash of the source files.

Imports nothing heavy: a study asks before it composes a cell.
"""

import hashlib
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ablations.files.atomic import make_folder, write_text
from ablations.texts import read_bytes, read_text
from dapo_lit.config.sections import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = "pages"
"""docs/ in an installed package: its examples are no code of a run."""
CODE = ("dapo_lit", "ablations", "math_answers", "conf", "pyproject.toml")
"""What decides, in a checkout, how a run goes."""


@cache
def code_state() -> dict[str, str | None]:
    """The commit, a hash of the changes since it, and a hash of the packages' source files.

    Read once per process, because a multirun runs the code that it loaded, whatever is edited meanwhile.
    """
    pages, digest = ROOT / "dapo_lit" / PAGES, hashlib.sha256()
    # `ablations` too: it says what an arm's settings are, and how a run is written.
    for file in sorted(file for package in ("dapo_lit", "ablations") for file in (ROOT / package).rglob("*.py")):
        if not file.is_relative_to(pages):
            digest.update(str(file.relative_to(ROOT)).encode() + read_bytes(file))
    diff = git("diff", "HEAD")
    return {
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty_hash": hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None,
        "code_hash": digest.hexdigest()[:16],
    }


@cache
def scoring_hash() -> str:
    """A hash of what decides whether a response is right under a rule: source files and the version of sympy."""
    digest = hashlib.sha256(version("sympy").encode())
    for file in (*sorted((ROOT / "math_answers").glob("*.py")), *sorted((ROOT / "dapo_lit" / "rewards").glob("*.py"))):
        digest.update(str(file.relative_to(ROOT)).encode() + read_bytes(file))
    return digest.hexdigest()[:16]


def uncommitted() -> list[str]:
    """Files of code and configs that differ from the checkout's commit or are not in it; none outside a checkout."""
    lines = git("status", "--porcelain", "--untracked-files=all", "--", *CODE) or ""
    return [line.split(maxsplit=1)[1] for line in lines.splitlines()]


def commit_file(source: Path, place: Path, subject: str) -> None:
    """Copies a file to `place` in the checkout and commits it there alone, unless it is there already.

    Raises ConfigError: there is no checkout, or git refuses; with git's own words.
    """
    target = ROOT / place
    make_folder(target.parent)
    write_text(target, read_text(source))
    if git("status", "--porcelain", "--ignored", "--untracked-files=all", "--", str(place)) == "":
        return
    for arguments in (["add", "--force", str(place)], ["commit", "--quiet", "-m", subject, "--", str(place)]):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=False)
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise ConfigError(f"study.registered_in={place.parent}: git {arguments[0]} refused: {words[-1]}")


def git(*arguments: str) -> str | None:
    """The output of a git command in the package's checkout; None outside one."""
    if not (ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
