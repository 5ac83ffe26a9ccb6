"""What to do with every change of a ledger, as the tree that `decide --json` prints (schemas/decide.json).

For tuning, the choice of `deciding.py`: least expected regret at a price. For claims, the sequential sign-flip test
over pairs, Holm-adjusted over all changes of the ledger. Both are in every answer; the purpose says which one acts.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from ablations.border import is_share
from ablations.compare.deciding import (
    MOST,
    SHARES,
    SHIPPED,
    Belief,
    Choice,
    Evidence,
    belief,
    choose,
    paired,
    pooled,
    unpaired,
)
from ablations.compare.sequential import decisions, planned_looks
from ablations.read.ledger import RUNS_A_PAIR, Change, Ledger, LedgerError

SCHEMA = "dapo_lit/decide/1"
"""Its number changes when a key is renamed, removed or given another meaning; keys may be added."""
PRICE = 0.02
"""The price of a pair in standard deviations of a pair, where none is named (docs/decide.md)."""
UNPAIRED_VARIANCE = (2.1, 18.3)
"""Variance of the difference of two runs that share nothing over that of a pair, medians over the committed factorials
programs and joint: so many times the runs find the same."""
FEWEST = 6
"""Pairs without any difference that show a change to do nothing; as many as can decide a test at 5 %."""
Purpose = Literal["tuning", "claims"]


def referee(
    ledger: Ledger,
    purpose: Purpose = "tuning",
    *,
    price: float | None = None,
    most: int = MOST,
    alpha: float | None = None,
    lower: bool = False,
) -> dict[str, Any]:
    """The answer to a ledger.

    price: of one unit of the ledger's cost, in the unit of its values; None: PRICE.
    most: the most pairs that a change gets.
    alpha: the error of all claims together; None: the registered one, else 0.05.
    lower: lower values are better.

    Raises LedgerError: a change has no run on one side and no pair.
    """
    sign = -1.0 if lower else 1.0
    evidence = [_evidence(change, sign, ledger.source) for change in ledger.changes]
    noise = SHARES if _of_shares(ledger) else SHIPPED
    level, looks = alpha or ledger.alpha or 0.05, ledger.looks or planned_looks(most)
    claimed = [[sign * d for d in change.claimed(ledger.planned)] for change in ledger.changes]
    # What a family registered counts in its error, also before it has a pair.
    decided = decisions([*claimed, *[[]] * ledger.absent], looks, level)[: len(claimed)]
    rows, notes = [], []
    for place, (change, each) in enumerate(zip(ledger.changes, evidence, strict=True)):
        now = belief(each, pooled(evidence, place, noise))
        of_pair = _cost_of_pair(change)
        pair_price = PRICE * now.sd if price is None else price * of_pair
        choice = choose(now, pair_price, max(0, most - math.ceil(each.pairs)))
        if len(change.pairs) >= FEWEST and not any(change.differences):
            # The model would ask for more pairs, as nothing is nearer to a tie. A change that moved no run is no tie.
            choice = Choice("discard", 0, choice.regret, choice.regret)
        claim = _claim(claimed[place], decided[place], looks)
        if purpose == "claims":
            choice = _for_claims(choice, claim, now, len(change.pairs))
        if len(claimed[place]) < len(change.pairs):
            order = "in order" if change.registered is None else "the registered ones in order"
            notes.append(
                f"{change.name}: a claim counts {len(claimed[place])} of {len(change.pairs)} pairs: {order}, up to the "
                "first that is not complete"
            )
        rows.append(_row(change, each, now, choice, claim, of_pair, pair_price, sign))
    return {
        "schema": SCHEMA,
        "source": ledger.source,
        "kind": ledger.kind,
        "metric": ledger.metric,
        "reference": ledger.reference,
        "better": "lower" if lower else "higher",
        "purpose": purpose,
        "price": price,
        "cost_unit": ledger.cost_unit,
        "alpha": level,
        "looks": list(looks),
        "registered": ledger.registered,
        "changes": rows,
        "notes": [*notes, *ledger.notes],
    }


def _of_shares(ledger: Ledger) -> bool:
    """True for a metric that is a share; of a ledger that names none, where all values lie between 0 and 1."""
    if ledger.metric is not None:
        return is_share(ledger.metric)
    values = [
        value
        for change in ledger.changes
        for value in (*change.treated, *change.control, *(v for p in change.pairs for v in (p.treated, p.control)))
    ]
    return all(0 <= value <= 1 for value in values)


def _evidence(change: Change, sign: float, source: str) -> Evidence:
    if change.pairs:
        return paired([sign * d for d in change.differences])
    if not change.treated or not change.control:
        raise LedgerError(
            f"{source}: the change {change.name!r} has no run {'without' if change.treated else 'with'} it"
        )
    return unpaired([sign * x for x in change.treated], [sign * x for x in change.control])


def _cost_of_pair(change: Change) -> float:
    """Mean cost of a pair; of unpaired runs, twice that of a run."""
    if change.pairs:
        return math.fsum(change.costs) / len(change.costs)
    return RUNS_A_PAIR * math.fsum(change.costs) / (len(change.treated) + len(change.control))


def _claim(differences: Sequence[float], decided: int | None, looks: Sequence[int]) -> dict[str, Any]:
    """The verdict of the sequential test: gain, loss or undecided, and the look at which it can change."""
    following = next((look for look in looks if look > len(differences)), None)
    if decided is None:
        return {"verdict": "undecided", "at_pairs": None, "next_look": following}
    verdict = "gain" if math.fsum(differences[:decided]) > 0 else "loss"
    return {"verdict": verdict, "at_pairs": decided, "next_look": None}


def _for_claims(choice: Choice, claim: dict[str, Any], now: Belief, pairs: int) -> Choice:
    """Nothing is kept that cannot be claimed."""
    if claim["verdict"] != "undecided" or claim["next_look"] is None:
        return Choice("keep" if claim["verdict"] == "gain" else "discard", 0, choice.regret, choice.regret)
    more = max(1, claim["next_look"] - pairs)  # 1: a registered pair is missing before those that are there
    after = choice.regret - now.gain(more) if math.isfinite(choice.regret) else choice.regret
    return Choice("more", more, choice.regret, after)


def _row(
    change: Change,
    evidence: Evidence,
    now: Belief,
    choice: Choice,
    claim: dict[str, Any],
    of_pair: float,
    pair_price: float,
    sign: float,
) -> dict[str, Any]:
    low, high = sorted(sign * end for end in now.interval())
    return {
        "change": change.name,
        "action": choice.action,
        "more_pairs": choice.more,
        "more_cost": choice.more * of_pair,
        "paired": bool(change.pairs),
        "pairs": evidence.pairs,
        "incomplete_pairs": len(change.incomplete),
        "difference": sign * evidence.mean,
        "sd": evidence.sd,
        "expected_effect": sign * now.mean,
        "low": _finite(low),
        "high": _finite(high),
        "wrong_sign": now.wrong_sign,
        "regret_now": _finite(choice.regret),
        "regret_after": _finite(choice.regret_after),
        "cost_so_far": math.fsum(change.costs),
        "price_of_pair": _finite(pair_price),
        "unpaired_runs_factor": _unpaired_factor(change, evidence),
        "claim": claim,
    }


def _unpaired_factor(change: Change, evidence: Evidence) -> float | None:
    """How many times the runs would tell as much if they shared nothing; None where it cannot be estimated."""
    if len(change.pairs) < 6 or not evidence.squares:
        return None
    sides = paired([pair.treated for pair in change.pairs]), paired([pair.control for pair in change.pairs])
    return (sides[0].squares + sides[1].squares) / evidence.squares


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
