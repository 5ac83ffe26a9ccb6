"""Whether a benchmark counts as wrong what training counts as right, on the forms in which models write answers.

The accuracy of a run and of its benchmark are then two measures: a policy that learns to write `n = 42` loses on the
benchmark what it wins in training.
"""

from collections.abc import Sequence

from dapo_lit.config.commands import Benchmark
from dapo_lit.rewards.references import FORMATS
from math_answers.extraction import Extraction, extract
from math_answers.forms import SPELLINGS
from math_answers.rules import Rule, decide

REFERENCES, SHOWN = 3, 4
"""References of a benchmark that are written in these forms, and forms that a warning quotes."""
PUBLISHED: dict[str, Rule] = {
    "aime_2024": "dapo",
    "aime_2025": "dapo",
    "amc23": "dapo",
    "math500": "sympy",
    "gsm8k_test": "numeric",
}
"""Rule of the scorer whose numbers are published for a shipped benchmark: DAPO's `math_dapo`, the value of an
expression (math-verify), the number (lm-evaluation-harness). On `SPELLINGS` the benchmark's own is not stricter, which
a test holds (tests/preflight/test_rules.py); `math_dapo` also takes a formula out of any text, whatever that says."""


Scoring = tuple[Rule, Extraction]


def stricter_forms(accepting: Scoring, other: Scoring, references: Sequence[str]) -> list[str]:
    """Answers that `accepting` counts as one of the references and `other` does not, one for each spelling. Each is
    given in the form that its own extraction reads.

    Pairs that need the symbolic comparison are left out: only `sympy` has it, and it accepts more than the others.
    """
    found: list[str] = []
    for spelling in SPELLINGS:
        answers = [(spelling.format(reference), reference) for reference in references]
        found += [a for a, b in answers if _accepts(accepting, a, b) is True and _accepts(other, a, b) is False][:1]
    return found


def _accepts(scoring: Scoring, answer: str, reference: str) -> bool | None:
    rule, extraction = scoring
    read = extract(FORMATS[extraction].format(answer), extraction)
    return False if read is None else decide(read, reference, rule)


def check_rules(rule: Rule, extraction: Extraction, benchmark: Benchmark, answers: Sequence[str]) -> tuple[str, ...]:
    """Warnings about a benchmark that is stricter than the rule and the extraction of training. answers: its own."""
    references = [*dict.fromkeys(answers)][:REFERENCES]
    label, warnings = f"evaluation.benchmarks: {benchmark.name}", []
    if forms := stricter_forms((rule, extraction), (benchmark.rule, benchmark.extraction), references):
        more = f" and {len(forms) - SHOWN} more forms" if len(forms) > SHOWN else ""
        warnings.append(
            f"{label} has rule {benchmark.rule} and counts as wrong what reward.rule={rule} accepts: "
            f"{', '.join(map(repr, forms[:SHOWN]))}{more}; train with reward.rule={benchmark.rule}, or give the "
            f"benchmark `rule: {rule}` in a file of your own (docs/evaluation.md#benchmarks)"
        )
    response = FORMATS[extraction].format(references[0]) if references else ""
    if references and extract(response, extraction) and not extract(response, benchmark.extraction):
        warnings.append(
            f"{label} has extraction {benchmark.extraction} and finds no answer in {response!r}, the form that "
            f"reward.extraction={extraction} trains; its prompt asks for another than task.template does"
        )
    return tuple(warnings)
