"""The loops of docs/examples/tune.py that have run: experiments/tuning, by rule and order."""

import json
from statistics import fmean
from typing import Any

from cells import ROOT

TUNING = ROOT / "experiments" / "tuning"
RULES = {"decide": "`decide`", "one-run": "one run"}
ORDERS = range(3)


def results() -> dict[tuple[int, str], dict[str, Any]]:
    """(order, rule) -> the result of the loop, with the number of its changes, in the order of the table."""
    found = {}
    for order in ORDERS:
        for rule in RULES:
            folder = TUNING / f"{rule}-{order}"
            if (folder / "result.json").is_file():
                decisions = (folder / "decisions.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
                result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
                found[order, rule] = {**result, "offers": len(decisions)}
    return found


def gain(result: dict[str, Any]) -> float:
    """Points of the end above the start on further base policies; 0 where the loop ended where it began."""
    return 100 * result["check"]["difference"] if result["check"] else 0.0


def table() -> str:
    rows = [
        "| order | rule | changes decided | runs | ends with | further base policies, end minus start | claim |",
        "|---:|---|---:|---:|---|---|---|",
    ]
    for (order, rule), result in results().items():
        checked, runs = result["check"], result["runs"]
        shown, claim = "the start", "–"
        if checked:
            low, high = (round(100 * checked[end], 1) + 0.0 for end in ("low", "high"))  # no minus before a zero
            shown = f"{gain(result):+.1f} [{low:.1f}, {high:.1f}]"
            claim, runs = checked["claim"]["verdict"], runs - 2 * int(checked["pairs"])
        page = f"[{result['end']}]({rule}-{order}/page.md)"
        rows.append(f"| {order} | {RULES[rule]} | {result['offers']} | {runs} | {page} | {shown} | {claim} |")
    return "\n".join(rows)


def means() -> str:
    """The mean over the orders that both rules have run."""
    found = results()
    both = [order for order in ORDERS if all((order, rule) in found for rule in RULES)]
    if not both:
        return "No order has run by both rules."
    of_rule = {rule: fmean(gain(found[order, rule]) for order in both) for rule in RULES}
    words = " and ".join(f"{mean:+.1f} by {RULES[rule]}" for rule, mean in of_rule.items())
    return f"Mean gain over {len(both)} of {len(ORDERS)} orders, in points: {words}."
