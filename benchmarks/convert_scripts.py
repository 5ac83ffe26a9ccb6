"""Compares what `convert` reads from shell scripts with what bash passes: `benchmarks/convert_scripts.py FOLDER ...`.

The oracle is bash itself. Each script of a folder runs in namespaces of its own, without a network, without other
processes and with nothing writable but a folder that is thrown away; its path has a few harmless programs, and a stub
in the place of `python3`, `torchrun`, `ray`, `trl` and the like that writes down its arguments. Every other command
succeeds and does nothing. A part of a word that convert leaves open (the output of a command, a variable that nobody
sets) fits anything, and is counted; so does a branch that only a run could decide. Linux only.

    python benchmarks/convert_scripts.py verl@b178a3cd verl-recipe@48ea0a79 \\
        --json benchmarks/results/convert_scripts.json

The scripts are not part of this repository: clone theirs, and name each folder by its commit. TRL's has none.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ablations.errors import UserError
from dapo_lit_tools.conversion.shell import Command, walk
from dapo_lit_tools.conversion.shell_words import OPEN, Words, is_open

STARTERS = ("accelerate", "deepspeed", "python", "python3", "ray", "torchrun", "trl")
HARMLESS = (
    "awk", "basename", "cat", "cut", "date", "dirname", "echo", "env", "expr", "grep", "head", "hostname", "mktemp",
    "nohup", "nproc", "printf", "readlink", "realpath", "sed", "seq", "sort", "tail", "tee", "tr", "uname", "wc",
)  # fmt: skip
BEFORE = """
command_not_found_handle() { return 0; }
cd() { :; }; pushd() { :; }; popd() { :; }; source() { :; }; .() { :; }; ulimit() { :; }; kill() { :; }; trap() { :; }
set() { :; }  # a file that is not here must not end a script
"""
STUB = """#!/bin/bash
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\1\\0'; } >> "$SAID"
"""
INSIDE = """
mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs none "$1" || exit 99
cp -a "$2"/. "$3" "$1" && mount --bind "$1" /tmp && mkdir /tmp/home && cd /tmp/home || exit 99
script=/tmp/${3##*/}; shift 3
export SAID=/tmp/said HOME=/tmp/home PATH=/tmp/bin BASH_ENV=/tmp/before.sh
/usr/bin/timeout 20 /bin/bash "$script" "$@" > /dev/null 2>&1 < /dev/null; ended=$?
/bin/cat "$SAID" 2> /dev/null
exit $((ended == 124 ? 98 : 0))
"""


def passed_by_bash(script: Path, tools: Path, arguments: Sequence[str]) -> tuple[list[tuple[str, ...]], bool]:
    """The words of each call of a stub, in their order; and whether the script came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["unshare", "-Urnpmf", "--mount-proc", "/bin/bash", "-c", INSIDE, "inside", folder, str(tools),
             str(script.resolve()), *arguments],
            capture_output=True, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}, check=False,
        )  # fmt: skip
    if done.returncode == 99:
        raise SystemExit(f"no namespaces of one's own here: {done.stderr.decode().strip()}")
    calls = done.stdout.decode(errors="replace").split("\1\0")[:-1]
    return [tuple(call.split("\0")[:-1]) for call in calls], done.returncode == 0


def make_tools(folder: Path) -> None:
    """The programs that a script finds, and what it reads before its first line."""
    (folder / "bin").mkdir()
    for name in STARTERS:
        (folder / "bin" / name).write_text(STUB, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    for name in HARMLESS:
        if place := shutil.which(name):
            (folder / "bin" / name).symlink_to(place)
    (folder / "before.sh").write_text(BEFORE, encoding="utf-8")


def starters(commands: Sequence[Command]) -> list[Command]:
    return [c for c in commands if is_open(c.words[0]) or Path(c.words[0]).name in STARTERS]


def fits(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether words with open parts can be those that bash passed."""
    if not ours:
        return not theirs
    first, rest = ours[0], ours[1:]
    if not is_open(first):
        # The folder that a script is in differs from place to place.
        return bool(theirs) and first == theirs[0] and fits_from(rest, theirs[1:])
    pattern = re.compile(
        "".join(".*" if n % 2 else re.escape(part) for n, part in enumerate(OPEN.split(first))), re.DOTALL
    )
    # An open word may be none or several.
    if theirs and pattern.fullmatch(theirs[0]) and fits_from(rest, theirs[1:]):
        return True
    alone = OPEN.sub("", first) == "" or OPEN.match(first) is not None
    return alone and (fits_from(rest, theirs) or (bool(theirs) and fits(ours, theirs[1:])))


def fits_from(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    place = 0
    while place < len(ours) and place < len(theirs) and not is_open(ours[place]):
        if ours[place] != theirs[place]:
            return False
        place += 1
    return fits(ours[place:], theirs[place:])


def difference(ours: Sequence[Command], theirs: Sequence[tuple[str, ...]], words: Words, ended: bool) -> str:
    """The first difference between the commands of a script; empty: none."""
    waiting = list(ours)
    for call in theirs:
        found = next(
            (command for command in waiting if fits((Path(command.words[0]).name, *command.words[1:]), call)), None
        )
        if found is None:
            near = max(waiting, key=lambda c: len({*c.words} & {*call}), default=None)
            lacks = sorted({*call} - {*(near.words if near else ())})
            more = sorted({words.shown(word) for word in near.words if word not in call} if near else ())
            return f"bash passes {' '.join(call[:4])} ... with {lacks[:4]}; convert has {more[:4]}"
        waiting.remove(found)
    # A loop that waits for a service never ends here, and what gives up without it ends at once.
    if ended and (certain := [command for command in waiting if not command.branch]):
        return f"bash does not run line {certain[0].line}: {words.shown(' '.join(certain[0].words[:4]))}"
    return ""


def compared(script: Path, tools: Path) -> dict[str, object]:
    """What became of one script."""
    try:
        found, words = walk(script.read_text(encoding="utf-8"), str(script))
    except UserError as error:
        return {"refused": str(error)}
    ours = starters(found.commands)
    ended_early = found.may_end is not None
    arguments = [str(number) for number in range(1, 10)] if words.arguments_open else []
    theirs, ended = passed_by_bash(script, tools, arguments)
    every = [word for command in ours for word in command.words]
    return {
        "commands": len(theirs), "words": len(every), "open": sum(map(is_open, every)),
        "branches": sum(bool(command.branch) for command in ours), "endless": int(not ended),
        "difference": difference(ours, theirs, words, ended and not ended_early),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the counts of each folder")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_tools(Path(folder))
        for root in options.folders:
            total: Counter[str] = Counter()
            for script in sorted(root.rglob("*.sh") if root.is_dir() else [root]):
                result = compared(script, Path(folder))
                total["scripts"] += 1
                if said := result.get("difference") or result.get("refused"):
                    print(f"{script}: {said}")
                    total["refused" if "refused" in result else "different"] += 1
                    continue
                total["without a command"] += not result["commands"]
                total.update(
                    {key: int(str(result[key])) for key in ("commands", "words", "open", "branches", "endless")}
                )
            rows.append({"folder": root.name, **total, "different": total["different"], "refused": total["refused"]})
            print(json.dumps(rows[-1]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["different"] or row["refused"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
