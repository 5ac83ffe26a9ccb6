"""Compares problems with each other (answers of equal ones, training with evaluation), gives every reference answer as
a response, and tries reward functions on a few: one that cannot score ends a run before its first step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

from ablations.errors import DataError
from dapo_lit.config import ConfigError
from dapo_lit.data.problem import Problem, is_number
from dapo_lit.data.selection import deduplicate, statement_key
from dapo_lit.preflight.table import Finding
from dapo_lit.rewards.functions import RewardError, RewardProblem
from dapo_lit.rewards.references import FORMATS, Unreachable, other_reading, unreachable
from dapo_lit.rewards.verifier import Verifier
from math_answers.extraction import Extraction

CONTRADICTING = 0.02
"""A larger share of problems that contradict another is refused."""
LEAKED = 0.5
"""A larger share of evaluation problems that are trained on is refused."""
Equivalent = Callable[[Sequence[tuple[str, str]]], list[bool]]


def check_labels(train: Sequence[Problem], equivalent: Equivalent | None) -> tuple[str, ...]:
    """Compares the answers of equal problems; the warnings.

    equivalent: which pairs of answers are the same under the rule; None: a reward function judges, which may look
        at other columns, so that different answers are only worth a warning.
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
        f"task.deduplicate=true drops them and keeps {len(deduplicate(train)[0]):,} of {len(train):,} rows"
    )
    if equivalent and rows > CONTRADICTING * len(train):
        raise DataError(message)
    return (message,)


def check_leakage(train: Sequence[Problem], evaluations: Mapping[str, Sequence[Problem]]) -> tuple[str, ...]:
    """Counts evaluation problems that are trained on; the warnings.

    evaluations: by the key that names them.
    """
    trained, warnings = {*map(statement_key, train)}, []
    for key, problems in evaluations.items():
        if not (leaked := [problem for problem in problems if statement_key(problem) in trained]):
            continue
        message = (
            f"{key}: {len(leaked):,} of {len(problems):,} problems are trained on as well, such as {leaked[0].id}, so "
            f"their accuracy says nothing about others; evaluate on other problems, or leave {_rows_of(leaked, train)} "
            "out of training (docs/tasks.md#choosing-problems)"
        )
        if len(leaked) > LEAKED * len(problems):
            raise ConfigError(message)
        warnings.append(message)
    return tuple(warnings)


def _rows_of(problems: Sequence[Problem], train: Sequence[Problem]) -> str:
    keys = {*map(statement_key, problems)}
    return f"their {sum(statement_key(problem) in keys for problem in train):,} of {len(train):,} rows"


LOOKED_AT = 200
"""Problems whose other columns are compared with what the policy reads."""
COLUMNS_NAMED = 8


def unseen_columns(problems: Sequence[Problem]) -> tuple[str, ...]:
    """A line that names the columns of text that reach neither the prompt nor the reference; none for those that are
    the same in every row, as the name of a source.
    """
    looked = problems[:LOOKED_AT]
    unseen = []
    for name in dict.fromkeys(name for problem in looked for name in problem.meta):
        values = [_texts(problem.meta.get(name)) for problem in looked]
        reads = ["\n".join([p.problem, p.answer, *(m["content"] for m in p.before)]) for p in looked]
        missed = any(text not in read for texts, read in zip(values, reads, strict=True) for text in texts)
        if missed and (len(looked) == 1 or len({*map(str, values)}) > 1):
            unseen.append(name)
    if not unseen:
        return ()
    more = f" and {len(unseen) - COLUMNS_NAMED} more" if len(unseen) > COLUMNS_NAMED else ""
    return (f"columns that the policy does not see: {', '.join(unseen[:COLUMNS_NAMED])}{more}",)


def _texts(value: object) -> list[str]:
    """The texts in a value of a column, numbers written as text left out."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value.strip()] if isinstance(value, str) and value.strip() and not is_number(value) else []


UNREACHABLE_REFUSED, UNREACHABLE_WARNED = 0.5, 0.01
"""Shares of reference answers that count as wrong when a response gives them: above the first a run is refused, above
the second it is warned."""
SHOWN, SHOWN_CHARS = 3, 60
"""Rows that a message quotes, and characters of each."""


def check_references(verifier: Verifier, problems: Sequence[Problem], key: str) -> Finding:
    """Gives every reference answer as a response under the verifier's rule; how many are right, and three that are not.

    A reward function is not asked: it may be slow, and it may want more than the answer (`try_rewards` tries it).

    key: of the config, for messages.
    Raises DataError if more than half can never be right.
    """
    if verifier.function is not None or not problems:
        return Finding("")
    references = [problem.answer for problem in problems]
    rule, extraction = verifier.rule, verifier.extraction
    lost = unreachable(references, rule, extraction, verifier.equivalent)
    words = f"{len(problems) - len(lost):,} of {len(problems):,} reference answers"
    if not lost:
        return Finding(words)
    share = len(lost) / len(problems)
    message = (
        f"{key}: {len(lost):,} of {len(problems):,} reference answers ({share:.1%}) count as wrong when a response "
        f"gives them (extraction {extraction}, rule {rule}), so no response to their problems can be right: "
        f"{'; '.join(_quoted(problems[each.index], each) for each in lost[:SHOWN])}"
    )
    if reading := other_reading([references[each.index] for each in lost], rule, extraction):
        name, right, tried = reading
        message += f". As the reference, {name} would be right in {right:,} of {tried:,}; use only that"
    if share > UNREACHABLE_REFUSED:
        raise DataError(message)
    return Finding(words, *(((message,), ()) if share > UNREACHABLE_WARNED else ((), (message,))))


def _quoted(problem: Problem, lost: Unreachable) -> str:
    read = "nothing" if lost.read is None else repr(lost.read[:SHOWN_CHARS])
    found = lost.fault or f"{problem.answer[:SHOWN_CHARS]!r} is read as {read}"
    return f"{problem.id}: {found}"


PROBLEMS = 16
"""Problems on which a reward function is tried with the reference answer; junk is scored for a quarter of them."""
JUNK = ("", "I do not know.", "qzx")


def try_rewards(
    verifier: Verifier,
    problems: Sequence[Problem],
    extraction: Extraction,
    max_error_frac: float = 1.0,
    key: str = "task.path",
    ids_of: Callable[[str], Sequence[int]] = lambda text: (),
) -> Finding:
    """Scores all reference answers under a rule, or a batch of them by a function, and junk, as a step does; warns
    about odd verdicts.

    ids_of: the tokens of a text, for functions that ask for them.
    Raises RewardError if more than `max_error_frac` of the batch gets no verdict, as of a function that fails, and
    DataError if a rule counts more than half of all reference answers as wrong.
    """
    chosen = [RewardProblem(p.id, p.problem, p.answer, p.meta) for p in problems[:PROBLEMS]]
    right = [FORMATS[extraction].format(problem.answer) for problem in chosen]
    junk = [*JUNK, FORMATS[extraction].format("qzx")]
    pairs = [
        *zip(chosen, right, strict=True),
        *((problem, text) for problem in chosen[: PROBLEMS // 4] for text in junk),
    ]
    name = f"reward.rule={verifier.rule} with reward.extraction={extraction}"
    if verifier.function:
        name = f"reward.function={verifier.function}"
    if verifier.wants_ids:
        pairs = [(replace(problem, ids=tuple(ids_of(text))), text) for problem, text in pairs]
    scores = verifier.score(pairs)
    verifier.first_error = None  # a run reports its own
    verdicts = [score.correct for score in scores]
    num_right = sum(verdicts[: len(right)])
    praised = [text for (_, text), verdict in zip(pairs, verdicts, strict=True) if verdict][num_right:]
    warnings = []
    if missing := [score for score in scores if score.missing]:
        late, reason = sum(score.timed_out for score in missing), next(filter(None, (s.error for s in missing)), "none")
        message = (
            f"{name} gives no verdict on {len(missing)} of {len(scores)} reference answers and junk texts ({late} "
            f"later than reward.deadline_s={verifier.deadline_s:g}; first failure: {reason})"
        )
        if len(missing) > max_error_frac * len(scores):
            raise RewardError(
                f"{message}, and more than reward.max_error_frac={max_error_frac:g} ends a run. A reward must score "
                "every text a model may write; docs/rewards.md says how a function is called and what it may return"
            )
        warnings.append(message)
    warnings += _batch_warnings(verifier, pairs[: len(right)])
    references = check_references(verifier, problems, key)
    if verifier.function and any(problem.answer for problem in chosen) and 2 * num_right < len(right):
        warnings.append(
            f"{name} counts the reference answer as wrong in {len(right) - num_right} of {len(right)} problems "
            f"(such as {_first_wrong(right, verdicts)!r}); if the reward needs only the answer, no response "
            "to those can ever be right"
        )
    if praised:
        warnings.append(f"{name} counts junk as right, such as {praised[0]!r}")
    named = "reference answers" if any(problem.answer for problem in chosen) else "empty answers (the rows have none)"
    good = references.words or f"{num_right} of {len(right)} {named}"
    words = f"{name.partition('.')[2]}: right are {good} and {len(praised)} of {len(pairs) - len(right)} junk texts"
    return Finding(words, (*references.warnings, *warnings), references.shown)


TRIED_TWICE = 8
"""Completions that are scored as one batch and in several."""


def _batch_warnings(verifier: Verifier, pairs: Sequence[tuple[RewardProblem, str]]) -> list[str]:
    """A warning about reward functions whose scores depend on what else is in their batch.

    A run sends completions as they end, so its batches depend on timing: such a reward is another one in every run.
    """
    if not verifier.functions or verifier.wants_groups or not pairs:
        return []
    # Responses of growing length, two to a prompt in different batches, so that a comparison with the rest of the batch
    # shows, and one with the rest of a prompt's group too.
    half = [*islice(cycle(pairs), TRIED_TWICE // 2)]
    chosen = [(problem, f"{'well, ' * n}{text}") for n, (problem, text) in enumerate([*half, *half])]
    backwards = [*range(len(chosen))][::-1]
    split = [backwards[:3], backwards[3:6], backwards[6:]]
    whole, *parts = verifier.score_batches([chosen, *([chosen[place] for place in part] for part in split)])
    verifier.first_error = None
    again = dict(zip([place for part in split for place in part], [s for part in parts for s in part], strict=True))
    judged = [(score, again[place]) for place, score in enumerate(whole) if not (score.missing or again[place].missing)]
    differing = sum((a.correct, a.value) != (b.correct, b.value) for a, b in judged)
    if not differing:
        return []
    return [
        f"{', '.join(verifier.functions)}: {differing} of {len(judged)} completions get another score when the same "
        "completions come in another order and in other batches, and batches depend on timing, so no run could be "
        "repeated. A score may depend on its own completion only; to compare those of a group, ask for whole groups by "
        "a parameter: def reward(problems, completions, groups)"
    ]


def _first_wrong(texts: Sequence[str], verdicts: Sequence[bool]) -> str:
    return next(text for text, verdict in zip(texts, verdicts, strict=False) if not verdict)
