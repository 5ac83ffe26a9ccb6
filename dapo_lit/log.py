"""What a run says while it works, through the logger `dapo_lit`: to standard output, as it is.

A program that uses the package silences it by `logging.getLogger("dapo_lit").setLevel("ERROR")`, or replaces the
logger's handler to send the messages elsewhere. What a command was asked for is printed by the command.
"""

import logging
import sys


class StandardOutput(logging.Handler):
    """Writes each message on lines of its own; a warning begins with that word, behind its indent."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = message.lstrip(" ")
            message = f"{' ' * (len(message) - len(text))}{record.levelname.lower()}: {text}"
        # Found at each message: a command replaces the stream (screen.py), and a notebook has its own.
        print(message, file=sys.stdout, flush=True)


log = logging.getLogger("dapo_lit")
log.setLevel(logging.INFO)
log.addHandler(StandardOutput())
# Handlers of the root logger would say everything twice.
log.propagate = False
