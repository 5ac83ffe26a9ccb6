"""A second checkable domain: short programs on strings, judged by running them.

A problem shows two pairs of an input and an output; the answer is a program that turns one into the other, like
`reverse; drop 2; upper`. Many programs are right, so there is nothing to compare with: the reward runs the program on
the pairs shown and on hidden ones. The interpreter is the loop in `run`; no text becomes Python, and both the length of
a program and of a string are bounded.

    PYTHONPATH=docs/examples python -m string_programs 1000 > string_programs.jsonl

    reward.function=string_programs.reward reward.extraction=answer_line
"""

import json
import random
import re
import sys
from collections.abc import Sequence

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rewards.templates import extract_answer_line

MAX_STEPS = 8
MAX_CHARS = 200
WITHOUT_NUMBER = ("reverse", "upper", "lower", "sort", "double")
WITH_NUMBER = ("drop", "take", "rotate")
SHOWN, HIDDEN = 2, 4
_STEP = re.compile(r"([a-z]+)(?: ([0-9]{1,2}))?")


class ProgramError(ValueError):
    """The text is no program."""


def run(program: str, text: str) -> str:
    """The string that `program` makes of `text`; raises ProgramError.

    >>> run("drop 1; reverse; upper", "abcd")
    'DCB'
    """
    steps = [step.strip() for step in program.strip().strip("`.").split(";")]
    if len(steps) > MAX_STEPS:
        raise ProgramError(f"more than {MAX_STEPS} steps")
    for step in steps:
        text = _apply(step, text)
        if len(text) > MAX_CHARS:
            raise ProgramError(f"more than {MAX_CHARS} characters")
    return text


def _apply(step: str, text: str) -> str:
    found = _STEP.fullmatch(step)
    if found is None or (found[1] in WITH_NUMBER) != (found[2] is not None):
        raise ProgramError(f"{step[:40]!r} is no step")
    number = int(found[2] or 0)
    match found[1]:
        case "reverse":
            return text[::-1]
        case "upper":
            return text.upper()
        case "lower":
            return text.lower()
        case "sort":
            return "".join(sorted(text))
        case "double":
            return text * 2
        case "drop":
            return text[number:]
        case "take":
            return text[:number]
        case "rotate":
            shift = number % len(text) if text else 0
            return text[shift:] + text[:shift]
        case _:
            raise ProgramError(f"{step[:40]!r} is no step")


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[Score]:
    """1 for a program that is right on every pair; -1 plus the share of pairs it gets right for any other."""
    return [_score(problem, text) for problem, text in zip(problems, completions, strict=True)]


def _score(problem: RewardProblem, completion: str) -> Score:
    program = extract_answer_line(completion)
    if program is None:
        return Score(correct=False, value=-1.0)
    pairs = problem.meta["pairs"]
    if not isinstance(pairs, list) or not pairs:
        raise ValueError(f"problem {problem.id} has no list of pairs")
    try:
        right = sum(run(program, before) == after for before, after in pairs)
    except ProgramError:
        right = 0
    correct = right == len(pairs)
    return Score(correct=correct, value=1.0 if correct else -1.0 + right / len(pairs), answer=program)


def make_problems(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Rows of a task: `answer` is one program that is right, `pairs` all pairs, the hidden ones included."""
    draw = random.Random(seed)
    return [_make_problem(number, draw) for number in range(count)]


def _make_problem(number: int, draw: random.Random) -> dict[str, object]:
    steps = [draw.choice(WITHOUT_NUMBER + WITH_NUMBER) for _ in range(draw.randint(1, 3))]
    program = "; ".join(f"{step} {draw.randint(1, 3)}" if step in WITH_NUMBER else step for step in steps)
    inputs = ["".join(draw.choices("abcdeXYZ", k=draw.randint(4, 8))) for _ in range(SHOWN + HIDDEN)]
    pairs = [[text, run(program, text)] for text in inputs]
    shown = "\n".join(f"{before} -> {after}" for before, after in pairs[:SHOWN])
    statement = (
        f"Find a program for:\n{shown}\nA program is steps separated by semicolons. Steps: "
        f"{', '.join(WITHOUT_NUMBER)}, {', '.join(f'{step} <number>' for step in WITH_NUMBER)}."
    )
    return {"id": f"string-{number}", "problem": statement, "answer": program, "pairs": pairs}


if __name__ == "__main__":
    for row in make_problems(int(sys.argv[1])):
        print(json.dumps(row))
