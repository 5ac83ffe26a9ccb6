"""Every generator of reasoning-gym with its defaults: are references right, is nonsense wrong, what does a check take?

Five problems a generator; CPU time of this process, so that it may run next to others. Rewrites the table of the page:

    OMP_NUM_THREADS=1 python benchmarks/generators.py --page docs/reasoning_gym.md
"""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import write_between
from reasoning_gym.factory import DATASETS

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.tasks import reasoning_gym

PROBLEMS = 5
NONSENSE = ("qzx", "I do not know.")
HEADER = """| generator | references right | paid for nonsense | a problem, ms | a check, ms |
|---|---|---|---|---|
"""


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What `call` returns and the milliseconds of CPU time it took."""
    started = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        result = call()
    return result, 1000 * (time.process_time() - started)


def paid(question: RewardProblem, answer: str) -> float | None:
    """The generator's score; None where its scorer fails."""
    try:
        return reasoning_gym.score(question, answer)
    except Exception:
        return None


def shown(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}" if ms >= 0.1 else f"{ms:.3f}"


def row(name: str, questions: list[RewardProblem], made_ms: float) -> str:
    own, nonsense, spent = [], [], []
    for question in questions:
        for scores, text in [(own, question.answer), *((nonsense, text) for text in NONSENSE)]:
            score, ms = timed(lambda question=question, text=text: paid(question, text))
            scores.append(score)
            spent.append(ms)
    right = sum(score is not None and score >= 1 for score in own)
    given = max((score for score in nonsense if score is not None), default=0.0)
    fails = "" if None not in nonsense else ", scorer fails"
    check = sum(spent[1:]) / len(spent[1:])  # the first call may load something
    return f"| `{name}` | {right} of {len(own)} | {given:.2g}{fails} | {shown(made_ms)} | {shown(check)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True)
    page = parser.parse_args().page
    made = {}
    for name in sorted(DATASETS):
        try:
            drawn, ms = timed(lambda name=name: reasoning_gym.problems(name, PROBLEMS, held_out=False, options={}))
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        made[name] = ([RewardProblem(p.id, p.problem, p.answer, p.meta) for p in drawn], ms / max(1, len(drawn)))
    reasoning_gym.prepare()
    write_between(page, "generators", HEADER + "".join(row(name, *found) for name, found in made.items()).rstrip())


if __name__ == "__main__":
    main()
