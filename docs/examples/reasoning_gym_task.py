"""Problems of reasoning-gym (extra `tasks`), about 100 generators, and the reward that its own scorers give.

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
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from dapo_lit.data.problem import Problem
from dapo_lit.errors import suggestion
from dapo_lit.rewards.functions import RewardProblem

HELD_OUT_SEED = 2**31
"""Problem i of a generator with seed s is drawn with s + i, so the splits need seeds that are far apart."""
MEMORY_MB = 6144
"""Address space of a worker: some generators load a corpus, and numpy reserves much for its threads."""
FUNCTIONS = {
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs", "pi",
}  # fmt: skip
OWN_TEXT = {"reasoning_gym.arithmetic.bitwise_arithmetic"}
"""Modules whose scorer evaluates the problem, not the answer."""
UNUSABLE = {"game_of_life_halting": "its scorer gives every text the full score"}
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def splits(dataset: str, train: int, held_out: int, options: dict[str, Any]) -> tuple[list[Problem], list[Problem]]:
    """Training problems and held-out ones; a statement that occurs in both is only held out."""
    kept_apart = problems(dataset, held_out, held_out=True, options=options)
    statements = {problem.problem for problem in kept_apart}
    drawn = problems(dataset, train, held_out=False, options=options)
    remaining = [problem for problem in drawn if problem.problem not in statements]
    if not remaining:
        raise ValueError(f"{dataset} has too few different problems: all of them are held out; lower task.num_heldout")
    return remaining, kept_apart


def problems(dataset: str, count: int, *, held_out: bool, options: dict[str, Any]) -> list[Problem]:
    """The first `count` problems with different statements, fewer if a generator repeats itself.

    Raises ValueError for an unknown generator, options that it refuses, and if the package is not installed.
    """
    first = HELD_OUT_SEED if held_out else 0
    source = _generator(dataset, json.dumps(options, sort_keys=True), first, 4 * count)
    found: dict[str, Problem] = {}
    for index in range(len(source)):
        if len(found) == count:
            break
        entry = source[index]
        meta = {"dataset": dataset, "options": options, "entry": entry}
        number = f"{'test' if held_out else 'train'}-{index}"
        found.setdefault(
            entry["question"], Problem(f"{dataset}-{number}", entry["question"], str(entry["answer"]), meta)
        )
    return list(found.values())


@cache
def _generator(dataset: str, options: str, seed: int, size: int) -> Any:
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ValueError(f"task=reasoning_gym needs the extra `tasks`, pip install -e '.[tasks]' ({error})") from None
    if dataset not in DATASETS:
        hint = suggestion(dataset, sorted(DATASETS))
        raise ValueError(f"task.path={dataset} is not a generator of reasoning-gym; {hint}")
    if dataset in UNUSABLE:
        raise ValueError(f"task.path={dataset} cannot be learnt: {UNUSABLE[dataset]}")
    try:
        return create_dataset(dataset, seed=seed, size=size, **json.loads(options))
    except AssertionError as error:
        raise ValueError(f"{dataset} refuses these options: {error}") from None


def answer_of(text: str) -> str | None:
    """The content of the last `<answer>` tags, else all that follows the last `Answer:`; a grid takes several lines.

    >>> answer_of("5 + 4 = 9\\nAnswer: 9"), answer_of("<answer>1 2\\n3 4</answer>"), answer_of("9")
    ('9', '1 2\\n3 4', None)
    """
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    _, found, answer = text.rpartition("Answer:")
    return answer.strip() if found else None


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[bool]:
    """True if the generator's scorer gives the full score; anything less is wrong."""
    return [_is_right(problem, text) for problem, text in zip(problems, completions, strict=True)]


def _is_right(problem: RewardProblem, text: str) -> bool:
    try:
        return score(problem, answer_of(text)) >= 1.0
    except MemoryError:
        raise
    except Exception:  # a scorer that cannot read the answer; that references are right is tried out before a run
        return False


def score(problem: RewardProblem, answer: str | None) -> float:
    """The score of the generator's own scorer, from 0 to 1; 0 without an answer."""
    if not answer:
        return 0.0
    meta: Any = problem.meta
    source = _generator(meta["dataset"], json.dumps(meta["options"], sort_keys=True), 0, 1)
    return float(source.score_answer(answer, meta["entry"]))


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
