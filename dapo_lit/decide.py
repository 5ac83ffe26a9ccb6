"""Keep a change, discard it, or run more pairs (ablations/commands/decide.py)."""

import sys

from ablations.commands.decide import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
