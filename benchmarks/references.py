r"""All distinct references of each public set compared with each other: no two that differ in value may be equal.

Each pair that the rule `sympy` counts as equal is confirmed by another reader: by Python's own fractions for sets whose
references are numbers, by math-verify for the others, or by the set itself (`latex_parse_pairs.jsonl` says what each
formula is). What neither confirms is listed as unconfirmed; `REVIEWED` has the pairs that were looked at by eye.

    python benchmarks/references.py --data $DAPO_LIT_DATA --out benchmarks/results/references.json
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from mpmath import mp

from math_answers import points
from math_answers.bounds import check_size
from math_answers.compare import compare_answers
from math_answers.expression import Call, Node, walk
from math_answers.full import FullComparer

NUMBERS = ("aime_2024", "aime_2025", "amc23", "gsm8k_train", "gsm8k_test", "dapo_math_17k")
EXPRESSIONS = ("math500", "math_train")
FORMULAS = "latex_parse_pairs"
Pair = tuple[str, str]
_REVIEWED = json.loads((Path(__file__).parent / "references_reviewed.json").read_text(encoding="utf-8"))
REVIEWED: dict[Pair, str] = {(a, b): reason for reason, pairs in _REVIEWED.items() for a, b in pairs}
"""Pairs that math-verify does not confirm and that were looked at one by one, and why they are one answer."""


def references(file: Path) -> list[str]:
    """The distinct references of a set, in their order."""
    rows = [json.loads(line) for line in file.open(encoding="utf-8")]
    return list(dict.fromkeys(str(row["answer"]) for row in rows))


def equal_pairs(answers: list[str], equal: Callable[[str, str], bool]) -> Iterator[Pair]:
    """Pairs that are equal in one direction at least; the rule is not symmetric."""
    for index, first in enumerate(answers):
        for second in answers[index + 1 :]:
            if equal(first, second) or equal(second, first):
                yield first, second


@cache
def first_value(node: Node) -> Any:
    """The value that the comparer would find at its first point; None where there is none, or with a logarithm."""
    if any(isinstance(part, Call) and part.name == "log" for part in walk(node)):
        return None  # of either base
    bits = check_size(node)
    with mp.workdps(int(40 + 0.61 * bits)):
        return points._value_at(node, points.near(0))


class RememberingComparer(FullComparer):
    """Evaluates each reference once and not once a pair: what differs at the first point is different."""

    def equal(self, a: Node, b: Node) -> bool | None:
        verdict = self._fast.equal(a, b)
        if verdict is not None:
            return verdict
        x, y = first_value(a), first_value(b)
        if x is not None and y is not None and abs(x - y) > 1e-12 * max(1, abs(x), abs(y)):
            return False
        return super().equal(a, b)


def by_sympy() -> Callable[[str, str], bool]:
    """The rule `sympy` as training and workers decide it together."""
    comparer = RememberingComparer()

    def equal(first: str, second: str) -> bool:
        return bool(compare_answers(first, second, comparer))

    return equal


def by_fractions(first: str, second: str) -> bool:
    return Fraction(first.replace(",", "")) == Fraction(second.replace(",", ""))


def by_math_verify(first: str, second: str) -> bool:
    from math_verify import parse, verify

    a, b = (parse(f"${text}$", parsing_timeout=30) for text in (first, second))
    return bool(verify(a, b, timeout_seconds=30) or verify(b, a, timeout_seconds=30))


def confirmed_by(meaning: Mapping[str, str]) -> Callable[[str, str], bool]:
    """Two formulas of one meaning, or what math-verify says."""
    return lambda first, second: meaning[first] == meaning[second] or by_math_verify(first, second)


def compared(name: str, answers: list[str], confirm: Callable[[str, str], bool]) -> dict[str, Any]:
    """The equal pairs of a set, those that nothing confirms, and what it cost."""
    start = time.process_time()
    pairs = list(equal_pairs(answers, by_sympy()))
    seconds = time.process_time() - start
    unconfirmed = [pair for pair in pairs if not confirm(*pair)]
    result = {
        "references": len(answers),
        "pairs": len(answers) * (len(answers) - 1),
        "equal": len(pairs),
        "unconfirmed": [list(pair) for pair in unconfirmed if pair not in REVIEWED],
        "reviewed": [[*pair, REVIEWED[pair]] for pair in unconfirmed if pair in REVIEWED],
        "processor_s": round(seconds, 1),
    }
    print(f"{name}: {result}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the sets")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--sets", nargs="+", default=[*NUMBERS, *EXPRESSIONS, FORMULAS])
    arguments = parser.parse_args()
    results = {}
    for name in arguments.sets:
        file = arguments.data / f"{name}.jsonl"
        if name == FORMULAS:
            rows = [json.loads(line) for line in file.open(encoding="utf-8")]
            confirm = confirmed_by({row["latex"]: row["sympy_expr"] for row in rows})
            results[name] = compared(name, list(dict.fromkeys(row["latex"] for row in rows)), confirm)
        else:
            confirm = by_fractions if name in NUMBERS else by_math_verify
            results[name] = compared(name, references(file), confirm)
    arguments.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
