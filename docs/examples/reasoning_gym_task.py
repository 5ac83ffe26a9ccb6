"""Problems of reasoning-gym (pip install reasoning-gym), about 100 generators, judged by their own scorers.

    python docs/examples/reasoning_gym_task.py countdown 1000 train.jsonl '{"max_numbers": 3}'
    python docs/examples/reasoning_gym_task.py countdown 100 heldout.jsonl '{"max_numbers": 3}' 2147483648

The arguments are generator, number of problems, file, the generator's options, and its seed: problem i is drawn with
seed + i, so files that must not overlap need seeds that are far apart. docs/reasoning_gym.md trains on them.

A generator scores an answer from 0 to 1, and pays small amounts for nonsense (Countdown 0.01), so a number of it is no
verdict. The rule here: an answer is right if it gets the full score, 1, and wrong otherwise. An answer that the scorer
fails on is wrong too.

Some scorers pass the answer to `eval` or to sympy's `parse_expr`. In the process that scores, `prepare` replaces both:
`eval` reads literals only, and `parse_expr` formulas of numbers, variables of one letter and a few functions.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from dapo_lit.rewards.functions import RewardProblem

MEMORY_MB = 6144
"""Address space of a worker: some generators load a corpus, and numpy reserves much for its threads."""
FUNCTIONS = {
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs", "pi",
}  # fmt: skip
OWN_TEXT = {"reasoning_gym.arithmetic.bitwise_arithmetic"}
"""Modules whose scorer evaluates the problem, not the answer."""
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def problems(dataset: str, count: int, options: dict[str, Any], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows of a data file, at most `count`, with different statements; a generator may repeat itself."""
    source, seen = generator(dataset, json.dumps(options), seed, 4 * count), set[str]()
    for index in range(len(source)):
        entry = source[index]
        if entry["question"] not in seen and len(seen) < count:
            seen.add(entry["question"])
            place = {"dataset": dataset, "options": json.dumps(options), "seed": seed + index}
            yield {"problem": entry["question"], "answer": str(entry["answer"]), **place}


@cache
def generator(dataset: str, options: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(dataset, seed=seed, size=size, **json.loads(options))


def answer_of(text: str) -> str | None:
    """The content of the last `<answer>` tags, else all that follows the last `Answer:`; a grid takes several lines."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    _, found, answer = text.rpartition("Answer:")
    return answer.strip() if found else None


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[bool]:
    """True if the generator's scorer gives the full score; anything less is wrong."""
    return [is_right(problem.meta, answer_of(text)) for problem, text in zip(problems, completions, strict=True)]


def is_right(place: Any, answer: str | None) -> bool:
    if not answer:
        return False
    source = generator(place["dataset"], place["options"], place["seed"], 1)  # the problem is drawn again
    try:
        return float(source.score_answer(answer, source[0])) >= 1.0
    except MemoryError:
        raise
    except Exception:  # a scorer that cannot read the answer; that references are right is tried out before a run
        return False


def prepare() -> None:
    """Imports the scorers in a worker, with `eval`, `exec` and `parse_expr` replaced."""
    import sympy
    from sympy.parsing import sympy_parser

    sympy.parse_expr = sympy_parser.parse_expr = partial(read_formula, parse=sympy_parser.parse_expr)
    import reasoning_gym  # noqa: F401

    for name, module in sys.modules.items():
        if name.startswith("reasoning_gym.") and name not in OWN_TEXT:
            vars(module).update(eval=ast.literal_eval, exec=_refused)


def _refused(*_: object) -> None:
    raise PermissionError("a scorer executes no text")


def read_formula(text: str, *args: Any, parse: Any, **settings: Any) -> Any:
    """`parse(text)` of a formula; raises ValueError for anything that could be more than one."""
    if not re.fullmatch(r"[\w+\-*/^(), .]{1,500}", text) or "__" in text or re.search(r"\.\s*[A-Za-z_]", text):
        raise ValueError("no formula")
    if unknown := [name for name in re.findall(r"[A-Za-z_]\w*", text) if len(name) > 1 and name not in FUNCTIONS]:
        raise ValueError(f"no formula: {unknown[0]}")
    return parse(text, *args, **settings)


if __name__ == "__main__":
    name, number, file, *more = sys.argv[1:]
    rows = problems(name, int(number), json.loads(more[0]) if more else {}, int(more[1]) if more[1:] else 0)
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
