"""Compares problems with each other: answers of equal ones, and those to train on with those to evaluate on."""

from collections.abc import Callable, Mapping, Sequence

from dapo_lit.config import ConfigError
from dapo_lit.data.duplicates import statement_key
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError

CONTRADICTING = 0.02
"""A larger share of problems that contradict another is refused."""
LEAKED = 0.5
"""A larger share of evaluation problems that are trained on is refused."""
Equivalent = Callable[[Sequence[tuple[str, str]]], list[bool]]


def check_labels(train: Sequence[Problem], equivalent: Equivalent | None) -> tuple[str, ...]:
    """Compares the answers of equal problems; the warnings.

    Args:
        equivalent: which pairs of answers are the same under the rule; None: a reward function judges, which may look
            at other columns, so that different answers are only worth a warning.

    Raises:
        DataError: too many equal problems have different answers.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in train:
        groups.setdefault(statement_key(problem), []).append(problem)
    suspects = [(group[0], other) for group in groups.values() for other in group if other.answer != group[0].answer]
    pairs = [(first.answer, other.answer) for first, other in suspects]
    same = equivalent(pairs) if equivalent and pairs else [False] * len(pairs)
    contradicted = {first.id: (first, other) for (first, other), equal in zip(suspects, same, strict=True) if not equal}
    if not contradicted:
        return ()
    rows = sum(len(group) for group in groups.values() if group[0].id in contradicted)
    first, other = next(iter(contradicted.values()))
    message = (
        f"{rows:,} of {len(train):,} training problems are given with different answers, such as {first.id} "
        f"({first.answer!r}) and {other.id} ({other.answer!r}), so right responses would be punished; correct them, or "
        "task.deduplicate=true drops them"
    )
    if equivalent and rows > CONTRADICTING * len(train):
        raise DataError(message)
    return (message,)


def check_leakage(train: Sequence[Problem], evaluations: Mapping[str, Sequence[Problem]]) -> tuple[str, ...]:
    """Counts evaluation problems that are trained on; the warnings.

    Args:
        evaluations: by the key that names them.

    Raises:
        ConfigError: most problems of an evaluation are.
    """
    trained, warnings = {*map(statement_key, train)}, []
    for key, problems in evaluations.items():
        if not (leaked := [problem for problem in problems if statement_key(problem) in trained]):
            continue
        message = (
            f"{key}: {len(leaked):,} of {len(problems):,} problems are trained on as well, such as {leaked[0].id}, so "
            "their accuracy says nothing about others; evaluate on other problems, or task.exclude_overlap_with=[...] "
            "keeps those of a file out of training"
        )
        if len(leaked) > LEAKED * len(problems):
            raise ConfigError(message)
        warnings.append(message)
    return tuple(warnings)
