"""What each technique could do in a run (ablations/commands/advise.py), and the commands that would settle it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.command_text import command, setting
from ablations.commands import advise

if TYPE_CHECKING:
    from ablations.compare.advice import Advice


def settling(run: Path, settings: Mapping[str, Any], given: Sequence["Advice"]) -> Iterator[str]:
    """The commands that would show what the techniques do to this run, or why there are none."""
    from ablations.designs import Arm
    from ablations.files.layout import kept_states

    if not settings:
        yield "A log has no settings and no states to fork; docs/coming_from.md has the keys to train here."
    elif not kept_states(run):
        yield "No fork yet: this run kept no training state; train it again with 'replay.record=[4,8]'."
    else:
        yield "To settle it on this run, from the states that it kept:"
        on = frozenset(each.technique for each in given if each.on)
        for arm in (Arm(on ^ {each.technique}).name for each in given if each.acts is not False):
            own = setting("fork.run", str(run)), setting("study.arms", [arm])
            yield f"  {command('train', '-m', '+study=fork', *own, 'study.until=decided')}"


main = partial(advise.main, settling=settling)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
