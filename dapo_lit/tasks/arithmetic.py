"""The task arithmetic_chat: sums that a small chat model sometimes gets right.

Two two-digit numbers: `What is 45 + 27?`. Whether a sum is held out depends only on the multiset of its terms: if
45 + 27 is held out, so is 27 + 45.
"""

from collections.abc import Mapping
from hashlib import blake2b
from itertools import product
from typing import Any, Literal

from dapo_lit.data.problem import Problem
from dapo_lit.seeds import epoch_permutation
from dapo_lit.tasks.generated import ProblemSets

HELD_OUT_ONE_IN = 10
# The worked examples in the template arithmetic_chat; in neither split.
WORKED_EXAMPLES = {(27, 45), (14, 38)}


def arithmetic_problems(split: Literal["train", "held_out"], num_problems: int | None = None) -> list[Problem]:
    """Distinct sums in a fixed order; by default the whole split (about nine tenths or one tenth of 8,100 sums).

    A shorter list is the start of a longer one. Raises ValueError if there are too few sums.

    >>> arithmetic_problems("train", num_problems=1)[0].problem
    'What is 85 + 97?'
    """
    sums = [terms for terms in product(range(10, 100), repeat=2) if _split_of(terms) == split]
    if num_problems is None:
        num_problems = len(sums)
    if not 1 <= num_problems <= len(sums):
        raise ValueError(
            f"{num_problems:,} {split} problems requested, but there are {len(sums):,} {split} sums; lower "
            "the number of problems"
        )
    return [_problem(sums[index]) for index in epoch_permutation(len(sums), seed=0, epoch=0)[:num_problems]]


def _split_of(terms: tuple[int, ...]) -> Literal["train", "held_out", "worked"]:
    multiset = tuple(sorted(terms))
    if multiset in WORKED_EXAMPLES:
        return "worked"
    digest = blake2b(repr(multiset).encode(), digest_size=8).digest()
    return "held_out" if int.from_bytes(digest) % HELD_OUT_ONE_IN == 0 else "train"


def _problem(terms: tuple[int, ...]) -> Problem:
    return Problem(
        id="arithmetic-" + "+".join(map(str, terms)),
        problem=f"What is {' + '.join(map(str, terms))}?",
        answer=str(sum(terms)),
        meta={"terms": list(terms), "num_terms": len(terms)},
    )


def problem_sets(num_train: int | None, num_heldout: int, options: Mapping[str, Any]) -> ProblemSets:
    if options:
        raise ValueError("arithmetic has no options")
    return ProblemSets(arithmetic_problems("train", num_train), arithmetic_problems("held_out", num_heldout))
