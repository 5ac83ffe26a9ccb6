"""What a clone weighs: README's command, a clone of one commit, and a full one: benchmarks/results/clone.json.

    python benchmarks/clone.py

A bare clone of this repository that serves filters stands for the host, so nothing is fetched over a network; a host
sends the same objects. Sizes are what `du` counts, in MB of 2^20 bytes, .git and the files of the checkout.
"""

import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "clone.json"
WAYS = {"one commit": ["git clone --depth 1 URL dapo_lit"], "full": ["git clone URL dapo_lit"]}


def of_readme() -> list[str]:
    """README's commands up to the one that chooses what is checked out."""
    text = (ROOT / "docs" / "site" / "readme.template").read_text(encoding="utf-8")  # README is made of it
    return re.findall(r"^git (?:clone|-C).*$", text, re.MULTILINE)


def megabytes(folder: Path) -> float:
    return int(subprocess.check_output(["du", "-sk", str(folder)], encoding="utf-8").split()[0]) / 1024


def main() -> None:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        host = Path(temporary) / "host.git"
        subprocess.run(["git", "clone", "-q", "--bare", str(ROOT), str(host)], check=True)
        subprocess.run(["git", "-C", str(host), "config", "uploadpack.allowFilter", "true"], check=True)
        for way, commands in {"readme": of_readme(), **WAYS}.items():
            here = Path(temporary) / way
            here.mkdir()
            for command in commands:
                words = shlex.split(command.replace("URL", f"--quiet file://{host}"))
                subprocess.run(words, cwd=here, check=True)
            clone = here / "dapo_lit"
            found[way] = {"mb": megabytes(clone), "git_mb": megabytes(clone / ".git")}
            subprocess.run(["rm", "-rf", str(here)], check=True)
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], encoding="utf-8").strip()
    OUT.write_text(json.dumps({"commit": commit, "ways": found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
