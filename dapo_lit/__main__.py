"""Runs a command by its name: `dapo-lit train +experiment=dapo` is `python -m dapo_lit.train +experiment=dapo`."""

import os
import runpy
import sys
from pathlib import Path

from ablations.errors import suggestion

COMMANDS = {
    "train": "train a policy, or the cells of a study with -m",
    "ablate": "a technique on a model and problems of your own, in one command",
    "advise": "what each technique could do in a run, and how to find out",
    "status": "list the cells of a study",
    "report": "write the report of a study",
    "decide": "keep a change, discard it, or run more pairs: an answer to a ledger of runs",
    "evaluate": "sample a model on a benchmark",
    "replay": "a recorded step under other switches",
    "plan": "memory, time and cost of a run before it is launched",
    "export": "a checkpoint as a Hugging Face folder",
    "docs": "the pages that messages name, such as docs/rewards.md",
    "doctor": "what a run needs on this machine, and what is missing",
    "convert": "a run of verl or TRL as the command here, and what has no counterpart",
    "schema": "JSON schemas of the configs, for editors",
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        width = max(map(len, COMMANDS))
        print("usage: dapo-lit COMMAND [arguments]; dapo-lit COMMAND --help\n")
        print("\n".join(f"  {command:<{width}}  {does}" for command, does in COMMANDS.items()))
        return
    if name == "--version":
        from importlib.metadata import version  # as long as all else that a list of commands takes

        print(f"dapo_lit {version('dapo_lit')}")
        return
    if name not in COMMANDS:
        sys.exit(_refused(f"{name}: no such command; {suggestion(name, COMMANDS)}"))
    here = os.getcwd()
    # As `python -m` has it: a file of the user's is found where the command is typed.
    if not sys.flags.safe_path and sys.path[0] not in ("", here):
        sys.path.insert(0, here)
    sys.argv[:2] = [str(Path(__file__).with_name(f"{name}.py"))]
    runpy.run_module(f"dapo_lit.{name}", run_name="__main__", alter_sys=True)


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
