"""Runs a command by its name: `ablations decide ledger.csv`."""

import sys
from importlib import import_module

from ablations.errors import suggestion

COMMANDS = {
    "report": "write the report of a study, or of another trainer's logs",
    "decide": "keep a change, discard it, or run more pairs: an answer to a ledger of runs",
    "advise": "what each technique could do in a run",
    "status": "list the cells of a study",
}


def main() -> int:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        print("usage: ablations COMMAND [arguments]; ablations COMMAND --help\n")
        print("\n".join(f"  {command:<6}  {does}" for command, does in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"error: {name}: no such command; {suggestion(name, COMMANDS)}", file=sys.stderr)
        return 2
    return int(import_module(f"ablations.commands.{name}").main(arguments))


if __name__ == "__main__":
    sys.exit(main())
