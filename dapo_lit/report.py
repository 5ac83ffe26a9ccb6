"""Writes the report of a study and prints its first page (ablations/commands/report.py)."""

import sys

from ablations.commands.report import main
from dapo_lit.callable_module import make_callable

make_callable(__name__)

if __name__ == "__main__":
    sys.exit(main())
