"""Eight of the paper's claims that an effect can decide, each with its metric, its arms, and what these runs say.

Verdicts follow one rule (verdicts.py) and are not adjusted for their number. docs/claims.md has the paper's other
claims, and why no verdict is given on them.
"""

from dapo_lit.study.compare.verdicts import (
    Claim,
    Part,
    Verdict,
    change,
    conclude,
    contrast_for,
    difference_of,
    effect,
    share_of_budget,
)
from dapo_lit.study.read.runs import Runs

ENTROPY, ALIKE = "rollout/entropy", "rollout/unique_frac"
LENGTH, REPEATS, TRUNCATED = "rollout/length_mean", "rollout/repetition_frac", "rollout/truncated_frac"
CLAIMS = {
    "C1": ("naive GRPO: entropy collapses (halves), answers become alike", f"{ENTROPY}, {ALIKE}", "naive_grpo"),
    "C3": ("clip-higher raises entropy and accuracy", ENTROPY + ", {metric}", "clip-higher on / off"),
    "C7": (
        "dynamic sampling: the same accuracy in fewer steps, in at most 1.25 times the time",
        "budget to reach the accuracy of the arm without it",
        "dynamic sampling on / off",
    ),
    "C8": (
        "sample-level loss: entropy, length and repetition grow",
        f"policy/entropy, {LENGTH}, {REPEATS}",
        "token-level loss off / on",
    ),
    "C9": ("token-level loss: a gain (a small one in the paper)", "{metric}", "token-level loss on / off"),
    "C10": ("overlong filtering improves", "{metric}", "filtering on / off"),
    "C11": (
        "soft punishment improves, with fewer truncated answers",
        "{metric}, " + TRUNCATED,
        "soft punishment on / off",
    ),
    "C12": ("the KL term is not needed (at most 2 points worse without)", "{metric}", "kl_sweep"),
}
"""Number in the list of the paper's claims -> what it says, the metrics it is judged by, the arms."""


def register(runs: Runs, metric: str) -> list[Claim]:
    """The eight claims, judged on the usable runs of a study.

    Args:
        metric: the accuracy that claims of a gain are judged by, whatever the study's own primary metric is.
    """
    seen = runs.usable
    judged = _entropy_and_clip(seen, metric) | _sampling(seen, metric) | _loss(seen, metric)
    claims = []
    for number, (text, keys, arms) in CLAIMS.items():
        verdict, evidence = judged[number]
        claims.append(Claim(number, text, keys.format(metric=metric), arms, verdict, evidence))
    return claims


Judged = dict[str, tuple[Verdict, str]]


def _entropy_and_clip(runs: Runs, metric: str) -> Judged:
    naive = runs.of("naive_grpo")
    halved = Part("half of the first entropy minus the last", change(naive, ENTROPY, -1, 0.5), ENTROPY)
    same = Part("fall of the share of distinct answers", change(naive, ALIKE, -1), ALIKE)
    return {
        "C1": conclude(halved, same),
        "C3": conclude(*(effect("clip_higher", runs, key) for key in (ENTROPY, metric))),
    }


def _sampling(runs: Runs, metric: str) -> Judged:
    contrast = contrast_for("dynamic_sampling", runs)
    steps, slower = share_of_budget(runs, contrast, metric, "step"), share_of_budget(runs, contrast, metric, "wall_s")
    return {
        "C7": conclude(steps.saved("steps saved, share", 1), slower.saved("1.25 minus the ratio of times", 1.25)),
    }


def _loss(runs: Runs, metric: str) -> Judged:
    kl = [arm for arm in runs.arms if arm.startswith("dapo@kl.")]
    margins = [
        Part(f"beta 0 - {arm} + 2 points", [d + 0.02 for d in difference_of(runs, "dapo", arm, metric)], metric)
        for arm in kl
    ]
    soft = "soft_overlong_punishment"
    return {
        "C8": conclude(*(effect("token_level_loss", runs, key, -1) for key in ("policy/entropy", LENGTH, REPEATS))),
        "C9": conclude(effect("token_level_loss", runs, metric)),
        "C10": conclude(effect("overlong_filtering", runs, metric)),
        "C11": conclude(effect(soft, runs, metric), effect(soft, runs, TRUNCATED, -1)),
        "C12": conclude(*margins),
    }
