r"""Leaves out the training problems that quote a problem of an evaluation set.

    python docs/examples/without_overlap.py dapo_math_17k.jsonl amc23.jsonl kept.jsonl

Overlap is n-gram containment: the share of an evaluation problem's distinct n-grams of words that occur in a training
problem, 1 where it is quoted in full; above a half, the training problem is left out. Case, punctuation and LaTeX
commands are ignored (`\\dfrac` or `\\frac`, `$...$` or `\\(...\\)`); rewordings and translations are not found.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_heldout, load_problems

# Letters and digits, or one character of a script written without blanks (Chinese, Japanese).
WORD = re.compile(r"[぀-ヿ一-鿿]|[^\W_぀-ヿ一-鿿]+")
# Not part of a word: a LaTeX command, and the comma in 1,760.
NOISE = re.compile(r"\\[a-zA-Z]+|(?<=\d),(?=\d{3}(?!\d))")


def find_overlaps(
    train: Sequence[Problem], evaluation: Sequence[Problem], *, n: int = 10, threshold: float = 0.5
) -> tuple[set[str], set[str]]:
    """Ids of the training problems that contain more than `threshold` of an evaluation problem's n-grams, and ids of
    the evaluation problems that are contained.

    Only the evaluation set is indexed: time grows with the training set, memory with the evaluation set. A problem of
    fewer than n words counts as a single n-gram.
    """
    grams = [ngram_hashes(problem.problem, n) for problem in evaluation]
    index: dict[int, list[int]] = {}
    for number, hashes in enumerate(grams):
        for value in hashes:
            index.setdefault(value, []).append(number)
    excluded, covered = set[str](), set[str]()
    for problem in train:
        shared = Counter(number for value in ngram_hashes(problem.problem, n) for number in index.get(value, ()))
        above = {evaluation[number].id for number, count in shared.items() if count / len(grams[number]) > threshold}
        if above:
            excluded.add(problem.id)
            covered |= above
    return excluded, covered


def ngram_hashes(text: str, n: int) -> set[int]:
    """Hashes of the distinct n-grams of words; comparable within one process only."""
    words = WORD.findall(NOISE.sub(lambda match: "" if match[0] == "," else " ", text).lower())
    if not words:
        return set()
    return {hash(tuple(words[start : start + n])) for start in range(max(1, len(words) - n + 1))}


if __name__ == "__main__":
    train, evaluation = load_problems(sys.argv[1]), load_heldout(sys.argv[2])
    excluded, covered = find_overlaps(train, evaluation)
    kept = [problem for problem in train if problem.id not in excluded]
    rows = [
        {**problem.meta, "id": problem.id, "problem": problem.problem, "answer": problem.answer} for problem in kept
    ]
    Path(sys.argv[3]).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(covered)} of {len(evaluation)} evaluation problems are in {len(excluded)} of {len(train)} left out")
