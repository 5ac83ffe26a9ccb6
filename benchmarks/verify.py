r"""The verifier's agreement with labelled pairs, its speed, and its behaviour under attack, compared with math-verify.

Agreement: `equivalence.jsonl` (triples from other projects' test suites; rows marked ambiguous do not count), for the
rules `sympy` and `dapo` and for math-verify's `parse` and `verify` on the same texts.

Speed: 8,192 responses, 512 references of MATH's training set times 16: half right in another spelling, the rest wrong
in ways models are. Corpora: clean; with 8 answers (1 in 1,000) that a naive verifier does not survive; with 8 that do
reach the deadline; and 2,048 right answers, no two alike, that all need the symbolic comparison. The processes are
started and warmed before the clock starts; that time is reported separately. Service time is the time in `submit` plus
the time in a worker, without waiting; `others` are the responses that were not killed. math-verify scores a sample of
the clean corpus in one process, as its users run it.

    OMP_NUM_THREADS=1 python benchmarks/verify.py --data $DAPO_LIT_DATA --out benchmarks/results/verify.json
"""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from math_answers.expression import canonical
from math_answers.fast import value
from math_answers.parse import parse_answer
from math_answers.rules import Rule, decide

PROMPTS, SAMPLES = 512, 16
WORKERS = 2
DEADLINE_S = 2.0
MATH_VERIFY_S = 30
"""math-verify's own limits are 5 seconds of the wall clock, which a busy machine would exceed."""
HOPELESS = [
    "9^{9^9}",
    "(10^8)!",
    "7" * 100_000,
    r"\frac{1}{" * 200,
    "__import__('os').system('sleep 60')",
    "x" * 1_000_000,
    "4\x00\x00",
    "\ud800\udfff",
]
Pair = tuple[RewardProblem, str]


def respelled(answer: str, draw: random.Random) -> str:
    """The same answer as a model may write it."""
    ways: list[Callable[[str], str]] = [
        lambda text: text,
        lambda text: text.replace("\\frac", "\\dfrac"),
        lambda text: f"${text}$",
        lambda text: f"\\left({text}\\right)" if re.fullmatch(r"[-0-9a-z+\\{}^ sqrtfac]+", text) else text,
        lambda text: text.replace(" ", ""),
        lambda text: f"x = {text}" if "=" not in text and "," not in text else text,
    ]
    return draw.choice(ways)(answer)


def spoiled(answer: str, others: Sequence[str], draw: random.Random) -> str:
    """A wrong answer: a digit changed, a sign added, or another problem's answer."""
    digits = [index for index, character in enumerate(answer) if character.isdigit()]
    way = draw.random()
    if digits and way < 0.6:
        index = draw.choice(digits)
        return answer[:index] + str((int(answer[index]) + draw.randint(1, 8)) % 10) + answer[index + 1 :]
    return f"-{answer}" if way < 0.8 else draw.choice(others)


def corpus(data: Path, draw: random.Random) -> list[Pair]:
    """Responses that end in a box, 16 for each of 512 problems."""
    rows = [json.loads(line) for line in (data / "math_train.jsonl").open(encoding="utf-8")]
    chosen = draw.sample(rows, PROMPTS)
    answers = [row["answer"] for row in chosen]
    pairs = []
    for row in chosen:
        for _ in range(SAMPLES):
            right = draw.random() < 0.5
            text = respelled(row["answer"], draw) if right else spoiled(row["answer"], answers, draw)
            pairs.append(
                (RewardProblem(row["id"], "", row["answer"]), rf"Some steps of reasoning. So it is \boxed{{{text}}}.")
            )
    draw.shuffle(pairs)
    return pairs


def endless(count: int) -> list[Pair]:
    """Answers that are right, small enough to be evaluated, and take longer than the deadline."""
    products = [rf"\prod_{{k=1}}^{{{n}}} \cos(kx)" for n in range(120, 120 + count)]
    return [(RewardProblem(f"endless-{n}", "", text), rf"\boxed{{{text} + 0y}}") for n, text in enumerate(products)]


def distinct_surds(count: int) -> list[Pair]:
    """The worst case: every answer is right, another one, and needs the symbolic comparison."""
    return [
        (RewardProblem(str(n), "", rf"\sqrt{{{n}}} + 1"), rf"\boxed{{1 + {n}^{{1/2}}}}")
        for n in range(10_000, 10_000 + count)
    ]


def forget() -> None:
    """Empties what this process remembers of earlier answers."""
    for cached in (decide, parse_answer, canonical, value):
        cached.cache_clear()


def processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Scores `pairs` once and counts."""
    forget()
    before_s = processor_s()
    with Verifier(rule="sympy", extraction="boxed", deadline_s=DEADLINE_S, workers=WORKERS) as verifier:
        start = time.perf_counter()
        verifier.score([(RewardProblem(str(n), "", rf"\sqrt{{{n}}}"), rf"\boxed{{{n}^{{1/2}}}}") for n in (2, 3, 5, 6)])
        warm_s = time.perf_counter() - start
        verifier.service_s.clear()
        in_process: list[float] = []
        scores = {}
        start = time.perf_counter()
        for index, (reference, text) in enumerate(pairs):
            before = time.perf_counter()
            verifier.submit(index, reference, text)
            in_process.append(time.perf_counter() - before)
            scores.update(dict(verifier.collect()))
        scores.update(dict(verifier.drain()))
        seconds = time.perf_counter() - start
        in_workers = sorted(verifier.service_s)
        processes = [] if verifier._supervisor is None else list(verifier._supervisor.pids())
    spent_s = processor_s() - before_s  # the workers have ended with the verifier
    timed_out = sum(score.timed_out for score in scores.values())
    others = sorted([*in_process, *(s for s in in_workers if s < DEADLINE_S)])
    return {
        "answers": len(pairs),
        "seconds": seconds,
        "answers_per_s": len(pairs) / seconds,
        "answers_per_processor_s": len(pairs) / spent_s,
        "right": sum(score.correct for score in scores.values()),
        "timed_out": timed_out,
        "errors": sum(score.error is not None for score in scores.values()),
        "sent_to_workers": len(in_workers),
        "service_ms": {
            name: 1000 * others[int(share * (len(others) - 1))] for name, share in (("p50", 0.5), ("p99", 0.99))
        },
        "service_ms_in_workers_p99": 1000 * in_workers[int(0.99 * (len(in_workers) - 1 - timed_out))]
        if in_workers
        else None,
        "start_s": warm_s,
        "processes_left": sum(Path(f"/proc/{pid}").exists() for pid in processes),
    }


Triple = tuple[str, str, bool | None]
"""Prediction, reference, and whether they are equal; None: ambiguous, not counted."""


def triples(file: Path) -> list[Triple]:
    rows = map(json.loads, file.open(encoding="utf-8"))
    return [(row["pred"], row["gold"], None if row.get("ambiguous") else row["equal"]) for row in rows]


def verdicts_of(rule: Rule, rows: Sequence[Triple]) -> list[bool]:
    with Verifier(rule=rule, extraction="auto", workers=WORKERS) as verifier:
        scores = verifier.score([(RewardProblem(str(n), "", gold), pred) for n, (pred, gold, _) in enumerate(rows)])
    return [score.correct for score in scores]


def math_verify_verdicts(texts: Sequence[tuple[str, str]]) -> tuple[list[bool], float]:
    """What math-verify says of (prediction, reference), and the processor seconds it takes."""
    try:
        from math_verify import parse, verify
    except ImportError:
        raise SystemExit("this benchmark also runs math-verify, which is missing: pip install -e '.[dev]'") from None

    def answers(text: str) -> Any:
        return parse(_delimited(text), parsing_timeout=MATH_VERIFY_S)

    answers("1")
    start = time.process_time()
    verdicts = [bool(verify(answers(gold), answers(pred), timeout_seconds=MATH_VERIFY_S)) for pred, gold in texts]
    return verdicts, time.process_time() - start


def _delimited(text: str) -> str:
    """math-verify reads LaTeX between dollar signs only; every bare answer gets them, as its users add them."""
    bare = not any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed", "####"))
    return f"${text}$" if bare else text


def counts(rows: Sequence[Triple], verdicts: Sequence[bool]) -> dict[str, Any]:
    counted = [(equal, verdict) for (*_, equal), verdict in zip(rows, verdicts, strict=True) if equal is not None]
    return {
        "counted": len(counted),
        "agreement": sum(equal == verdict for equal, verdict in counted) / len(counted),
        "false_positives": sum(verdict and not equal for equal, verdict in counted),
        "false_negatives": sum(bool(equal) and not verdict for equal, verdict in counted),
    }


def machine() -> dict[str, Any]:
    names = ("math-verify", "sympy", "mpmath")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
                if "model name" in line
            ),
            platform.processor(),
        ),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with equivalence.jsonl and math_train.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--math-verify-sample", type=int, default=1024, help="responses that math-verify scores")
    parser.add_argument("--agreement-only", action="store_true", help="keep the speeds that --out has from before")
    arguments = parser.parse_args()

    rows = triples(arguments.data / "equivalence.jsonl")
    results: dict[str, Any] = {
        "machine": machine(),
        "workers": WORKERS,
        "deadline_s": DEADLINE_S,
        "agreement": {},
        "speed": {},
    }
    rules: tuple[Rule, ...] = ("sympy", "dapo")
    results["agreement"] = {rule: counts(rows, verdicts_of(rule, rows)) for rule in rules}
    verdicts, _ = math_verify_verdicts([(pred, gold) for pred, gold, _ in rows])
    results["agreement"]["math-verify"] = counts(rows, verdicts)
    print(*(f"{name}: {found}" for name, found in results["agreement"].items()), sep="\n")

    if arguments.agreement_only:  # no speed depends on it, and it needs no idle machine
        before = json.loads(arguments.out.read_text(encoding="utf-8"))
        arguments.out.write_text(
            json.dumps(before | {"agreement": results["agreement"]}, indent=1) + "\n", encoding="utf-8"
        )
        return

    pairs = corpus(arguments.data, random.Random(0))
    hopeless = [(RewardProblem(f"hopeless-{n}", "", "42"), rf"\boxed{{{text}}}") for n, text in enumerate(HOPELESS)]
    corpora = {
        "clean": pairs,
        "8 hopeless": _mixed(pairs, hopeless),
        "8 past the deadline": _mixed(pairs, endless(8)),
        "distinct surds": distinct_surds(2048),
    }
    for name, members in corpora.items():
        results["speed"][name] = measure(members)
        _print_speed(name, results["speed"][name])
    sample = pairs[: arguments.math_verify_sample]
    _, seconds = math_verify_verdicts([(text, f"${reference.answer}$") for reference, text in sample])
    results["speed"]["math-verify, one process"] = {
        "answers": len(sample),
        "answers_per_processor_s": len(sample) / seconds,
    }
    print(
        f"math-verify, one process: {len(sample) / seconds:,.0f} answers a processor second, on {len(sample)} of clean"
    )
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


def _mixed(pairs: Sequence[Pair], few: Sequence[Pair]) -> list[Pair]:
    """`few` in place of members of `pairs`, spread evenly."""
    mixed = list(pairs)
    for number, pair in enumerate(few):
        mixed[(2 * number + 1) * len(pairs) // (2 * len(few))] = pair
    return mixed


def _print_speed(name: str, result: dict[str, Any]) -> None:
    service = result["service_ms"]
    print(
        f"{name:20} {result['answers_per_s']:8,.0f} answers/s  {result['seconds']:6.2f} s  "
        f"{result['answers_per_processor_s']:8,.0f} a processor second  "
        f"timeouts {result['timed_out']}  to workers {result['sent_to_workers']:5}  "
        f"service p50 {service['p50']:.2f} ms, p99 {service['p99']:.2f} ms  processes left {result['processes_left']}"
    )


if __name__ == "__main__":
    main()
