"""The paper's claims, each with its metric, its arms, and whether these runs support it.

Verdicts follow one rule (verdicts.py) and are not adjusted for their number: of nineteen, one may be wrong by chance.
"""

from statistics import median

from scipy import stats

from dapo_lit.study.compare.contrasts import contrasts, difference
from dapo_lit.study.compare.verdicts import (
    CHECKPOINTS,
    Claim,
    Part,
    Verdict,
    by_seed,
    change,
    conclude,
    contrast_for,
    difference_of,
    effect,
    judge,
    rank_correlation,
    seed_means,
    share_of_budget,
)
from dapo_lit.study.read.health import ends
from dapo_lit.study.read.outcomes import outcome, scores
from dapo_lit.study.read.runs import Runs
from dapo_lit.techniques import LADDER

ENTROPY, ALIKE, CORRECT = "rollout/entropy", "rollout/unique_frac", "rollout/groups_all_correct_frac"
LENGTH, REPEATS, TRUNCATED = "rollout/length_mean", "rollout/repetition_frac", "rollout/truncated_frac"
NOISE, PROB = "optim/grad_noise", "clip/high_prob_mean"
CLAIMS = {
    "C1": ("naive GRPO: entropy collapses (halves), answers become alike", f"{ENTROPY}, {ALIKE}", "naive_grpo"),
    "C2": ("up-clipped tokens have low probability", PROB, "clip-higher off"),
    "C3": ("clip-higher raises entropy and accuracy", ENTROPY + ", {metric}", "clip-higher on / off"),
    "C4": ("a larger lower bound collapses the sampling space", f"{ALIKE}, {ENTROPY}", "clip_sweep, low"),
    "C5": ("the share of all-correct prompts keeps rising", CORRECT, "any"),
    "C6": ("gradient variance rises with it", NOISE, "dynamic sampling off"),
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
    "C13": (
        "training reward says little about validation accuracy (|rank correlation| < 0.5)",
        "rollout/reward, {metric}",
        "any",
    ),
    "C14": ("length may stagnate or fall", LENGTH, "any"),
    "C15": ("a slow rise of entropy goes with better results", f"rise of {ENTROPY}, {{metric}}", "all, within a seed"),
    "C16": ("reflection is absent early and frequent later", "rollout/reflection_frac", "dapo"),
    "C17": ("small changes of initial conditions grow", "{metric}", "any"),
    "C18": ("every technique adds to the result", "{metric}", "table1"),
    "C19": ("DAPO needs half the steps of the reference", "steps to reach its {metric}", "dapo against naive_grpo"),
}
"""Number -> what the paper claims, the metrics it is judged by, the arms."""


def register(runs: Runs, metric: str) -> list[Claim]:
    """The nineteen claims, judged on the usable runs of a study.

    Args:
        metric: the primary metric, with which evaluations are judged.
    """
    seen = runs.usable
    judged = _entropy_and_clip(seen, metric) | _sampling(seen, metric) | _loss(seen, metric) | _training(seen, metric)
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
    low = {
        run.name: 0.2 - float(series.mean())
        for run in runs
        if not run.techniques.get("clip_higher", True) and len(series := run.series(PROB))
    }
    below = Part("0.2 minus the mean probability", seed_means(tuple(runs), low), PROB)
    wide = "dapo@clip.low=0.28"
    falls = [
        Part(f"fall of {key}", difference_of(runs, "dapo", wide, key) if wide in runs.arms else (), key)
        for key in (ALIKE, ENTROPY)
    ]
    return {
        "C1": conclude(halved, same),
        "C2": conclude(below),
        "C3": conclude(*(effect("clip_higher", runs, key) for key in (ENTROPY, metric))),
        "C4": conclude(*falls),
    }


def _sampling(runs: Runs, metric: str) -> Judged:
    rises = {run.name: change([run], CORRECT)[0] for run in runs if ends(run, CORRECT)}
    off = [run for run in runs if not run.techniques.get("dynamic_sampling", True)]
    together = {run.name: rho for run in off if (rho := rank_correlation(run, CORRECT, NOISE)) is not None}
    contrast = contrast_for("dynamic_sampling", runs)
    steps, slower = share_of_budget(runs, contrast, metric, "step"), share_of_budget(runs, contrast, metric, "wall_s")
    return {
        "C5": conclude(Part("rise", seed_means(tuple(runs), rises), CORRECT)),
        "C6": conclude(Part("rank correlation over steps", seed_means(off, together), "rho")),
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


def _training(runs: Runs, metric: str) -> Judged:
    rungs = [c for c in contrasts(runs.arms) if c.family == "ladder"]
    table = scores(runs, metric)
    increments = [Part(c.label, list(by_seed(c, table).values()), metric) for c in rungs]
    steps = share_of_budget(runs, difference("", "", None, "dapo", "naive_grpo"), metric, "step")
    reflecting = change(runs.of("dapo"), "rollout/reflection_frac")
    return {
        "C13": _reward_and_evaluation(runs, metric),
        "C14": _length(runs),
        "C15": _entropy_goes_with_results(runs, metric),
        "C16": conclude(Part("rise", reflecting, "rollout/reflection_frac")),
        "C17": _spread(runs, metric),
        "C18": conclude(*(increments if len(rungs) == len(LADDER) else ())),
        "C19": conclude(steps.saved("0.5 minus the ratio of steps", 0.5)),
    }


def _reward_and_evaluation(runs: Runs, metric: str) -> tuple[Verdict, str]:
    held_out = metric.startswith("eval/")
    correlations = {run.name: rank_correlation(run, "rollout/reward", metric) for run in runs if held_out}
    rhos = {name: rho for name, rho in correlations.items() if rho is not None}
    far = seed_means(tuple(runs), {name: 0.5 - abs(rho) for name, rho in rhos.items()})
    if held_out and not far and len(runs):
        evaluations = max(len(run.series(metric)) for run in runs)
        few = f"at most {evaluations} evaluations a run, {CHECKPOINTS} are needed for a rank correlation"
        return "undecided", few
    return conclude(Part("0.5 minus |rho| over checkpoints", far, "rho"))


def _length(runs: Runs) -> tuple[Verdict, str]:
    """Holds if length fell in some arm by more than the spread of its seeds; fails if it rose in every arm."""
    falls = {arm: change(runs.of(arm), LENGTH, -1) for arm in runs.arms}
    verdicts = [judge(values) for values in falls.values() if values]
    fell = [arm for arm, values in falls.items() if judge(values) == "holds"]
    rose = len(verdicts) > 0 and all(verdict == "fails" for verdict in verdicts)
    verdict: Verdict = "not run" if not verdicts else "holds" if fell else "fails" if rose else "undecided"
    means = [sum(values) / len(values) for values in falls.values() if values]
    evidence = f"fell from first to last tenth in {len(fell)} of {len(means)} arms"
    evidence += f" ({', '.join(fell)})" if fell else ""
    evidence += f"; mean change of an arm {-max(means):+.1f} to {-min(means):+.1f} tokens" if means else ""
    return verdict, evidence


def _entropy_goes_with_results(runs: Runs, metric: str) -> tuple[Verdict, str]:
    """Within a seed, whose arms share a base policy: between seeds it would compare base policies."""
    rhos = []
    for seed in runs.seeds:
        pairs = [
            (pair[1] - pair[0], reduced.last)
            for run in runs
            if run.seed == seed and (pair := ends(run, ENTROPY)) and (reduced := outcome(run, metric))
        ]
        rises, results = [rise for rise, _ in pairs], [result for _, result in pairs]
        if len(set(rises)) > 1 and len(set(results)) > 1:
            rhos.append(float(stats.spearmanr(rises, results).statistic))
    return conclude(Part("rank correlation over the arms of a seed", rhos, "rho"))


def _spread(runs: Runs, metric: str) -> tuple[Verdict, str]:
    """How far a run lies from the median seed of its arm: at the end minus at the first evaluation after the start."""
    growth: dict[str, float] = {}
    for arm in runs.arms:
        table = {run.name: later for run in runs.of(arm) if len(later := run.series(metric)[lambda s: s.index > 0]) > 1}
        if len(table) < 3:
            continue
        first, last = ({name: float(series.iloc[at]) for name, series in table.items()} for at in (0, -1))
        growth |= {
            name: abs(last[name] - median(last.values())) - abs(first[name] - median(first.values())) for name in table
        }
    label = "growth of the distance from the median seed, mean over arms"
    return conclude(Part(label, seed_means(tuple(runs), growth), metric))
