"""Tries the rule or the reward functions on a few problems before a run: a function that cannot score ends it there."""

from collections.abc import Sequence

from dapo_lit.data.problem import Problem
from dapo_lit.errors import RewardError
from dapo_lit.preflight.table import Finding
from dapo_lit.rewards.verifier import Reference, Verifier
from math_answers.extraction import Extraction

PROBLEMS = 16
"""Problems whose reference answers are scored; junk is scored for a quarter of them."""
FORMATS: dict[Extraction, str] = {
    "answer_line": "Answer: {}",
    "boxed": r"\boxed{{{}}}",
    "hash": "#### {}",
    "number": "{}",
    "auto": "The answer is {}.",
}
"""A response that gives its answer as the task asks for it."""
JUNK = ("", "I do not know.", "qzx")


def try_rewards(
    verifier: Verifier, problems: Sequence[Problem], extraction: Extraction, max_error_frac: float = 1.0
) -> Finding:
    """Scores a batch of reference answers, in the task's format, and junk, as a step does; warns about odd verdicts.

    Raises RewardError if a function fails, or if more than `max_error_frac` of the batch gets no verdict.
    """
    chosen = [Reference(p.id, p.answer, p.problem, p.meta) for p in problems[:PROBLEMS]]
    right = [FORMATS[extraction].format(reference.answer) for reference in chosen]
    junk = [*JUNK, FORMATS[extraction].format("qzx")]
    pairs = [
        *zip(chosen, right, strict=True),
        *((reference, text) for reference in chosen[: PROBLEMS // 4] for text in junk),
    ]
    try:
        verifier.try_functions(pairs)
    except ValueError as error:
        raise RewardError(
            f"a reward function failed on reference answers such as {right[0]!r} and on junk, before the first step: "
            f"{error}. It must score every text a model may write; docs/rewards.md says how it is called and what it "
            "may return"
        ) from None
    name = f"reward.rule={verifier.rule} with reward.extraction={extraction}"
    if verifier.function:
        name = f"reward.function={verifier.function}"
    scores = verifier.score(pairs)
    reason, verifier.first_error = verifier.first_error, None  # a run reports its own
    verdicts = [score.correct for score in scores]
    praised = [text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict][
        sum(verdicts[: len(right)]) :
    ]
    warnings = []
    if missing := [score for score in scores if score.missing]:
        late = sum(score.timed_out for score in missing)
        message = (
            f"{name} gives no verdict on {len(missing)} of {len(scores)} completions ({late} later than "
            f"reward.deadline_s={verifier.deadline_s:g}, the others failed: {reason})"
        )
        if len(missing) > max_error_frac * len(scores):
            raise RewardError(f"{message}, and more than reward.max_error_frac={max_error_frac:g} ends a run")
        warnings.append(message)
    if not any(verdicts[: len(right)]):
        warnings.append(
            f"{name} counts the reference answer as wrong in all of {len(right)} problems "
            f"(such as {right[0]!r}); if it asks for no more than the answer, nothing can be learnt"
        )
    if praised:
        warnings.append(f"{name} counts junk as right, such as {praised[0]!r}")
    good = f"{sum(verdicts[: len(right)])} of {len(right)} reference answers"
    words = f"{name.partition('.')[2]}: right are {good} and {len(praised)} of {len(pairs) - len(right)} junk texts"
    return Finding(words, tuple(warnings))
