"""Rules that keep or discard changes, tried on committed runs.

    python benchmarks/referee.py joint joint_pairs programs > benchmarks/results/referee.json
    python benchmarks/referee.py --into benchmarks/results/referee.json parity

Somebody starts from naive GRPO and is offered changes in random order; a rule spends runs on each and keeps it or not.
Six of the twelve base policies are drawn for the rule, the other six give the truth: the final arm's mean accuracy
there, and the true effect of each change that was decided. Every run of an arm on a base is paid once, so a rule that
goes on with the same bases pays for one side only. Everything is read from the factorial studies; nothing is trained.

`joint` is a full factorial: the changes are its five techniques. `programs` and `parity` are half fractions, in which
no two arms differ in one technique: the changes are the ten pairs of techniques, both switched at once. `joint_pairs`
is that in joint. Each row is the mean over LOOPS loops with the same draws and orders for every rule. A decision is
wrong if a change that costs more than 2 points on the held-out bases is kept, or one that gains more is dropped.

`noise` has what the prior of `decide` was chosen by, on the first two tasks: how effects spread in standard deviations
of a pair, how much these deviations vary between changes, and what pairing saves. Without a task only this part is made
anew.

What was chosen on the first two tasks and predicted of the third is in experiments/referee/plan.md.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ablations.compare.deciding import FLAT, Belief, Evidence, Prior, belief, choose, paired, pooled
from ablations.compare.referee import PRICE
from ablations.compare.sequential import first_rejection
from ablations.compare.statistics import sign_flip_p
from ablations.designs import read_arm
from ablations.techniques import REGISTER

ROOT = Path(__file__).parents[1]
TASKS = {
    "joint": ("factorial_joint", 1),
    "joint_pairs": ("factorial_joint", 2),
    "programs": ("factorial_half_programs", 2),
    "parity": ("factorial_half_parity", 2),
}
"""Task -> its study, and the techniques that one change switches."""
DRAWN, LOOPS, SEED, MATTERS = 6, 1000, 44, 2.0


def accuracies(study: str) -> np.ndarray:
    """Held-out accuracy at the end in points [arms, bases]; an arm's number has a bit for each technique that is on."""
    table = pd.read_parquet(ROOT / "experiments" / study / "runs" / "metrics.parquet")
    (key,) = (name for name in table if name.startswith("eval/") and name.endswith("/avg@2"))
    last = table.dropna(subset=[key]).sort_values("step").groupby(["arm", "seed"])[key].last().unstack()
    found = np.full((2 ** len(REGISTER), last.shape[1]), np.nan)
    for arm, row in last.iterrows():
        on = read_arm(str(arm)).on
        found[sum(1 << bit for bit, technique in enumerate(REGISTER) if technique in on)] = 100 * row.to_numpy()
    return found


@dataclass
class Loop:
    """One person who tunes: bases and order drawn, runs paid for, decisions written down."""

    table: np.ndarray
    drawn: Sequence[int]
    held: Sequence[int]
    offers: Sequence[int]
    rng: np.random.Generator
    arm: int = 0
    paid: set[tuple[int, int]] = field(default_factory=set)
    decisions: list[tuple[float, bool]] = field(default_factory=list)
    """True effect and whether the change was kept."""
    ledger: list[Evidence] = field(default_factory=list)
    """Of the changes before."""

    def run(self, arm: int, place: int) -> float:
        """A run of an arm on the drawn base at this place."""
        self.paid.add((arm, self.drawn[place]))
        return float(self.table[arm, self.drawn[place]])

    def difference(self, change: int, place: int) -> float:
        return self.run(self.arm ^ change, place) - self.run(self.arm, place)

    def truth(self, arm: int) -> float:
        return float(self.table[arm, list(self.held)].mean())

    def decide(self, change: int, keep: bool) -> None:
        self.decisions.append((self.truth(self.arm ^ change) - self.truth(self.arm), keep))
        if keep:
            self.arm ^= change


Rule = Callable[[Loop], None]


def one_by_one(keeps: Callable[[Loop, int], bool]) -> Rule:
    """Every change is offered once."""

    def rule(loop: Loop) -> None:
        for change in loop.offers:
            loop.decide(change, keeps(loop, change))

    return rule


def apart(runs: int) -> Rule:
    """Kept if the mean of so many runs is higher than the incumbent's, which were made on other bases when it was
    new."""

    def rule(loop: Loop) -> None:
        places = list(loop.rng.permutation(DRAWN))
        own, others = places[:runs], places[runs:]
        score = np.mean([loop.run(loop.arm, place) for place in own])
        for change in loop.offers:
            new = list(loop.rng.permutation(others)[:runs])
            tried = np.mean([loop.run(loop.arm ^ change, place) for place in new])
            keep = bool(tried > score)
            loop.decide(change, keep)
            if keep:
                own, score, others = new, tried, [place for place in range(DRAWN) if place not in new]

    return rule


def greedy(pairs: int) -> Rule:
    """Kept if the mean of so many pairs is above 0."""
    return one_by_one(lambda loop, change: np.mean([loop.difference(change, p) for p in range(pairs)]) > 0)


def exact(alpha: float) -> Rule:
    """Kept if the exact test over six pairs says that it gains."""

    def keeps(loop: Loop, change: int) -> bool:
        values = [loop.difference(change, place) for place in range(DRAWN)]
        return float(np.mean(values)) > 0 and sign_flip_p(values) <= alpha

    return one_by_one(keeps)


def sequential(alpha: float) -> Rule:
    """The same with looks after every pair from the second on: ends as soon as the change is decided."""
    looks = tuple(range(2, DRAWN + 1))

    def keeps(loop: Loop, change: int) -> bool:
        values: list[float] = []
        for place in range(DRAWN):
            values.append(loop.difference(change, place))
            if first_rejection(values, looks, alpha):
                return float(np.mean(values)) > 0
        return False

    return one_by_one(keeps)


def value(share: float | None = None, price: float | None = None, prior: Prior | None = None) -> Rule:
    """What `decide` does for tuning, pair by pair.

    share: the price of a pair in its standard deviations; price: of a pair, in points.
    prior: another one than decide's, which takes the noise of the changes before into account.
    """

    def keeps(loop: Loop, change: int) -> bool:
        values: list[float] = []
        while True:
            values.append(loop.difference(change, len(values)))
            evidence = paired(values)
            now = belief(evidence, prior or pooled([*loop.ledger, evidence], len(loop.ledger)))
            choice = choose(now, share * now.sd if share is not None else price or 0.0, DRAWN - len(values))
            if choice.action != "more":
                loop.ledger.append(evidence)
                return now.mean > 0

    return one_by_one(keeps)


def halving(rounds: int) -> Rule:
    """Races all changes that are left: after each pair the worse half goes, the last one is kept if it gains, and the
    race starts again around the new arm, so many times at most."""

    def rule(loop: Loop) -> None:
        left = list(loop.offers)
        for _ in range(rounds):
            racing, pairs = list(left), 0
            means: dict[int, float] = {}
            while racing and (pairs == 0 or len(racing) > 1) and pairs < DRAWN:
                pairs += 1
                means = {c: float(np.mean([loop.difference(c, p) for p in range(pairs)])) for c in racing}
                racing = sorted(racing, key=lambda change: -means[change])[: max(1, len(racing) // 2)]
            if not racing or means[racing[0]] <= 0:
                break
            loop.decide(racing[0], True)
            left.remove(racing[0])
        for change in left:
            loop.decide(change, False)

    return rule


def race(share: float, least: float = 0.1) -> Rule:
    """The best of all changes that are left is searched: each gets a pair, then whichever pair is worth most for
    choosing among them and doing nothing, until none is worth its price. The best is kept if it gains, and the race
    starts again around the new arm, without changes that gain with a probability below `least`."""

    def rule(loop: Loop) -> None:
        left, dropped = list(loop.offers), []
        while left:
            values = {change: [loop.difference(change, 0)] for change in left}
            while True:
                evidence = [paired(found) for found in values.values()]
                beliefs = {c: belief(evidence[i], pooled(evidence, i)) for i, c in enumerate(values)}
                gains = {c: _gain_of_pair(c, beliefs) for c in left if len(values[c]) < DRAWN}
                change = max(gains, key=lambda c: gains[c], default=None)
                if change is None or gains[change] <= share * beliefs[change].sd:
                    break
                values[change].append(loop.difference(change, len(values[change])))
            best = max(left, key=lambda c: beliefs[c].mean)
            if beliefs[best].mean <= 0:
                break
            loop.decide(best, True)
            doubtful = [c for c in left if beliefs[c].mean < 0 and beliefs[c].wrong_sign < least]
            dropped += doubtful
            left = [c for c in left if c != best and c not in doubtful]
        for change in [*left, *dropped]:
            loop.decide(change, False)

    return rule


def _gain_of_pair(change: int, beliefs: dict[int, Belief]) -> float:
    """What a further pair of a change is expected to add to the best of all changes and of none."""
    now = beliefs[change]
    rival = max([0.0, *(each.mean for other, each in beliefs.items() if other != change)])
    return replace(now, mean=now.mean - rival).gain(1)


def rules() -> dict[str, dict[str, Rule]]:
    """Family -> setting -> rule. A family's settings spend different numbers of runs."""
    return {
        "other seeds": {f"{n} runs a side": apart(n) for n in (1, 2, 3)},
        "pairs": {f"{n} pairs": greedy(n) for n in (1, 2, 3, 4, 6)},
        "exact test": {f"alpha {a:g}": exact(a) for a in (0.05, 0.2, 0.5)},
        "sequential test": {f"alpha {a:g}": sequential(a) for a in (0.05, 0.2, 0.5)},
        "value": {f"share {s:g}": value(share=s) for s in (0.3, 0.1, 0.05, 0.02, 0.005)},
        "value, price in points": {f"{p:g} points": value(price=p) for p in (1.0, 0.3, 0.1, 0.03)},
        "value, flat prior": {f"share {s:g}": value(share=s, prior=FLAT) for s in (0.3, 0.1, 0.02)},
        "race by value": {f"share {s:g}": race(s) for s in (0.3, 0.1, 0.05, 0.02)},
        "halving": {f"{r} rounds": halving(r) for r in (1, 2, 3, 5)},
    }


def loops(table: np.ndarray, switched: int, count: int, seed: int = SEED) -> list[Loop]:
    """So many draws of bases and orders. Each rule gets its own copies, with the same draws."""
    rng = np.random.default_rng(seed)
    bits = [1 << bit for bit in range(len(REGISTER))]
    changes = [sum(chosen) for chosen in itertools.combinations(bits, switched)]
    found = []
    for _ in range(count):
        bases = rng.permutation(table.shape[1])
        own = np.random.default_rng(rng.integers(2**32))
        offers = [int(change) for change in rng.permutation(changes)]
        found.append(Loop(table, bases[:DRAWN].tolist(), bases[DRAWN:].tolist(), offers, own))
    return found


def summary(done: Sequence[Loop]) -> dict[str, float]:
    """Means over loops. Regret is the distance to the arm that is best on the held-out bases."""
    arms = [arm for arm in range(len(done[0].table)) if not np.isnan(done[0].table[arm, 0])]
    best = [max(loop.truth(arm) for arm in arms) for loop in done]
    final = [loop.truth(loop.arm) for loop in done]
    effects = np.array([decision[0] for loop in done for decision in loop.decisions])
    kept = np.array([decision[1] for loop in done for decision in loop.decisions])
    harmful, useful = effects < -MATTERS, effects > MATTERS
    wrong = (harmful & kept) | (useful & ~kept)
    return {
        "runs": float(np.mean([len(loop.paid) for loop in done])),
        "final": float(np.mean(final)),
        "regret": float(np.mean(best) - np.mean(final)),
        "wrong": float(wrong.sum() / max(1, (harmful | useful).sum())),
        "harmful_kept": float((harmful & kept).sum() / max(1, harmful.sum())),
        "useful_dropped": float((useful & ~kept).sum() / max(1, useful.sum())),
        "wrong_of_any_size": float(np.mean((effects > 0) != kept)),
    }


def played(rule: Rule, table: np.ndarray, switched: int, count: int = LOOPS) -> dict[str, float]:
    done = loops(table, switched, count)
    for loop in done:
        rule(loop)
    return summary(done)


def at_runs(curve: Sequence[dict[str, float]], key: str, runs: float) -> float:
    """A family's value at a number of runs: between its settings linearly, beyond them that of the last one."""
    points = sorted(curve, key=lambda row: row["runs"])
    return float(np.interp(runs, [row["runs"] for row in points], [row[key] for row in points]))


DEFAULT = f"share {PRICE:g}"


def goals(table: np.ndarray, switched: int, count: int) -> dict[str, float]:
    """The two comparisons of the goal: decide's rule at its default price, against others at the same runs."""
    found = rules()
    ours = played(found["value"][DEFAULT], table, switched, count)
    curves = {f: [played(r, table, switched, count) for r in found[f].values()] for f in ("other seeds", "pairs")}
    seeds_wrong = at_runs(curves["other seeds"], "wrong", ours["runs"])
    return {
        "runs": ours["runs"],
        "wrong": ours["wrong"],
        "wrong_of_other_seeds": seeds_wrong,
        "fewer_wrong": 1 - ours["wrong"] / seeds_wrong,
        "fewer_wrong_than_pairs": 1 - ours["wrong"] / max(1e-9, at_runs(curves["pairs"], "wrong", ours["runs"])),
        "regret_minus_pairs": ours["regret"] - at_runs(curves["pairs"], "regret", ours["runs"]),
        "regret_minus_other_seeds": ours["regret"] - at_runs(curves["other seeds"], "regret", ours["runs"]),
    }


def jackknife(table: np.ndarray, switched: int, count: int = 150) -> dict[str, float]:
    """Standard errors of `goals` over base policies: each is left out once."""
    bases = table.shape[1]
    left = [goals(np.delete(table, base, axis=1), switched, count) for base in range(bases)]
    return {key: float(np.sqrt((bases - 1) * np.var([row[key] for row in left]))) for key in left[0] if key != "runs"}


def task(name: str) -> dict[str, object]:
    """The rows of a task, its goals and their standard errors."""
    study, switched = TASKS[name]
    table = accuracies(study)
    rows = {
        family: {label: rounded(played(rule, table, switched)) for label, rule in settings.items()}
        for family, settings in rules().items()
    }
    return {
        "study": study,
        "changes": len(loops(table, switched, 1)[0].offers),
        "rules": rows,
        "goals": rounded(goals(table, switched, LOOPS)),
        "standard_errors": rounded(jackknife(table, switched)),
    }


def noise(table: np.ndarray, switched: int) -> dict[str, float]:
    """Spread of effects, variation of the noise and gain from pairing, over all changes between two arms of the study.

    spread: of effects in standard deviations of a pair, without what sampling adds.
    freedom: degrees of freedom whose sample deviations would vary as those of a pair do beyond sampling.
    unpaired_variance: of the difference of two runs on other bases over that of a pair, median.
    """
    arms = [arm for arm in range(len(table)) if not np.isnan(table[arm, 0])]
    found = [(a, b) for a, b in itertools.combinations(arms, 2) if (a ^ b).bit_count() == switched]
    pairs = np.array([table[b] - table[a] for a, b in found])
    apart = np.array([table[a].var(ddof=1) + table[b].var(ddof=1) for a, b in found])
    n, sd = pairs.shape[1], pairs.std(axis=1, ddof=1)
    # The square of a standardised mean is too large by its noncentral t's factor, and by 1 / n.
    squares = (pairs.mean(axis=1) / sd) ** 2 * (n - 3) / (n - 1) - 1 / n
    beyond = max(1e-9, float(np.log(sd).var()) - 1 / (2 * (n - 1)))
    return {
        "spread": float(np.sqrt(squares.mean())),
        "freedom": 1 / (2 * beyond),
        "unpaired_variance": float(np.median(apart / sd**2)),
    }


def rounded(row: dict[str, float]) -> dict[str, float]:
    return {key: round(number, 4) for key, number in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="*", help=", ".join(TASKS))
    parser.add_argument("--into", type=Path, help="adds the tasks to this JSON")
    options = parser.parse_args()
    found = {"loops": LOOPS, "drawn": DRAWN, "seed": SEED, "matters": MATTERS, "price_share": PRICE, "tasks": {}}
    if options.into and options.into.is_file():
        found = json.loads(options.into.read_text(encoding="utf-8"))
    found["noise"] = {name: rounded(noise(accuracies(study), k)) for name, (study, k) in TASKS.items()}
    for name in options.tasks:
        found["tasks"][name] = task(name)
        print(f"{name}: done", file=sys.stderr)
    text = json.dumps(found, indent=1)
    options.into.write_text(text + "\n", encoding="utf-8") if options.into else print(text)


if __name__ == "__main__":
    main()
