r"""The rule `sympy` on labelled answer pairs, by class of reference, and on answers that only look like a reference.

`equivalence.jsonl` has pairs from the tests of other projects, with a label each; the answer of a whole response is
extracted by `auto`. Pairs marked ambiguous (they depend on a convention: rounding, order, form) are listed, not
counted. The hedges say less than the reference (`\ne 5`, `> 5`, `x \in 5` for 5); none may be accepted.

    python benchmarks/equivalence.py --data $DAPO_LIT_DATA --out benchmarks/results/equivalence.json
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from math_answers.compare import compare_answers
from math_answers.extraction import extract
from math_answers.free_text import find_reference
from math_answers.full import FullComparer
from math_answers.parse import parse_answer

COMPARER = FullComparer()
HEDGES = (
    r"\ne {}", r"\neq {}", r"\not= {}", r"x \not= {}", "> {}", "< {}", r"\ge {}", r"\le {}", r"≠ {}", "!= {}", "<= {}",
    r"x > {}", r"x \ne {}", r"x \le {}", r"\in {}", r"x \in {}", r"\not\in {}", r"x \notin {}", r"\pm {}", "not {}",
    r"\text{{at least }} {}", "{} or more", "{} or 77",
)  # fmt: skip
REFERENCES = (
    "5", "-3", "0.25", r"\frac{1}{2}", r"\sqrt{2}", r"2\pi", "x+1", "x^2", r"50\%", r"5\text{ cm}", "30^\\circ", "1,2",
    "3:4", r"\text{even}", "(C)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
)  # fmt: skip
"""No sets and intervals: `x \\in [1,2]` is the interval."""


def same(prediction: str, reference: str) -> bool:
    return bool(compare_answers(prediction, reference, COMPARER))


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    classes: dict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(("pairs", "agree", "accepted", "rejected"), 0)
    )
    wrong, ambiguous = [], []
    for row in rows:
        prediction, reference = extract(row["pred"], "auto"), find_reference(row["gold"])
        verdict, kind = prediction is not None and same(prediction, reference), row["kind"]
        if kind == "answer":
            kind = type(parse_answer(reference)[0]).__name__.lower()
        found = {key: row[key] for key in ("id", "pred", "gold", "equal", "ambiguous")} | {"verdict": verdict}
        if row["ambiguous"]:
            ambiguous.append(found)
            continue
        classes[kind]["pairs"] += 1
        classes[kind]["agree"] += verdict == row["equal"]
        classes[kind]["accepted"] += verdict and not row["equal"]
        classes[kind]["rejected"] += row["equal"] and not verdict
        if verdict != row["equal"]:
            wrong.append(found)
    hedges = [(hedge.format(reference), reference) for hedge in HEDGES for reference in REFERENCES]
    return {
        "classes": {kind: classes[kind] for kind in sorted(classes)},
        "false_acceptances": sum(counts["accepted"] for counts in classes.values()),
        "false_rejections": sum(counts["rejected"] for counts in classes.values()),
        "disagreements": wrong,
        "ambiguous": {"agree": sum(row["verdict"] == row["equal"] for row in ambiguous), "rows": ambiguous},
        "hedges": {"tried": len(hedges), "accepted": [pair for pair in hedges if same(*pair)]},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines = (arguments.data / "equivalence.jsonl").open(encoding="utf-8")
    found = report([json.loads(line) for line in lines])
    arguments.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "ambiguous"}, indent=1))
