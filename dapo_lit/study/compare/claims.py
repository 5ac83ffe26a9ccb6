"""The register of the paper's claims: each with its metric, its arms, and whether these runs support it.

Verdicts follow one rule (verdicts.py) and are not adjusted over the register: of nineteen, one may be wrong by chance.
"""

from statistics import median

from scipy import stats

from dapo_lit.study.compare.contrasts import Contrast, contrasts
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


def register(runs: Runs, metric: str) -> list[Claim]:
    """The nineteen claims, judged on the usable runs of a study.

    Args:
        metric: the primary metric, which stands for `evaluation`.
    """
    seen = runs.usable
    return [*_entropy_and_clip(seen, metric), *_sampling(seen, metric), *_loss(seen, metric), *_training(seen, metric)]


def _entropy_and_clip(runs: Runs, metric: str) -> list[Claim]:
    naive = runs.of("naive_grpo")
    entropy, alike = "rollout/entropy", "rollout/unique_frac"
    halved = Part("half of the first entropy minus the last", change(naive, entropy, -1, 0.5), entropy)
    same = Part("fall of the share of distinct answers", change(naive, alike, -1), alike)
    low = {
        run.name: 0.2 - float(series.mean())
        for run in runs
        if not run.techniques.get("clip_higher", True) and len(series := run.series("clip/high_prob_mean"))
    }
    below = Part("0.2 minus the mean probability", seed_means(tuple(runs), low), "clip/high_prob_mean")
    raises = [effect("clip_higher", runs, key) for key in (entropy, metric)]
    wide = [arm for arm in runs.arms if arm == "dapo@clip.low=0.28"]
    falls = [
        Part(f"fall of {key}", difference_of(runs, "dapo", wide[0], key) if wide else (), key)
        for key in (alike, entropy)
    ]
    return [
        conclude(
            "C1",
            "naive GRPO: entropy collapses (halves), answers become alike",
            f"{entropy}, {alike}",
            "naive_grpo",
            halved,
            same,
        ),
        conclude("C2", "up-clipped tokens have low probability", "clip/high_prob_mean", "clip-higher off", below),
        conclude(
            "C3", "clip-higher raises entropy and accuracy", f"{entropy}, {metric}", "clip-higher on / off", *raises
        ),
        conclude(
            "C4", "a larger lower bound collapses the sampling space", f"{alike}, {entropy}", "clip_sweep, low", *falls
        ),
    ]


def _sampling(runs: Runs, metric: str) -> list[Claim]:
    correct, noise = "rollout/groups_all_correct_frac", "optim/grad_noise"
    rises = {run.name: change([run], correct)[0] for run in runs if ends(run, correct)}
    off = [run for run in runs if not run.techniques.get("dynamic_sampling", True)]
    together = {run.name: rho for run in off if (rho := rank_correlation(run, correct, noise)) is not None}
    contrast = contrast_for("dynamic_sampling", runs)
    steps, slower = share_of_budget(runs, contrast, metric, "step"), share_of_budget(runs, contrast, metric, "wall_s")
    return [
        conclude(
            "C5",
            "the share of all-correct prompts keeps rising",
            correct,
            "any",
            Part("rise", seed_means(tuple(runs), rises), correct),
        ),
        conclude(
            "C6",
            "gradient variance rises with it",
            noise,
            "dynamic sampling off",
            Part("rank correlation over steps", seed_means(off, together), "rho"),
        ),
        conclude(
            "C7",
            "dynamic sampling: the same accuracy in fewer steps, in at most 1.25 times the time",
            "budget to reach the accuracy of the arm without it",
            "dynamic sampling on / off",
            steps.saved("steps saved, share", 1),
            slower.saved("1.25 minus the ratio of times", 1.25),
        ),
    ]


def _loss(runs: Runs, metric: str) -> list[Claim]:
    length, repeats = "rollout/length_mean", "rollout/repetition_frac"
    unhealthy = [effect("token_level_loss", runs, key, -1) for key in ("policy/entropy", length, repeats)]
    kl = [arm for arm in runs.arms if arm.startswith("dapo@kl.")]
    margins = [
        Part(f"beta 0 - {arm} + 2 points", [d + 0.02 for d in difference_of(runs, "dapo", arm, metric)], metric)
        for arm in kl
    ]
    soft = [
        effect("soft_overlong_punishment", runs, metric),
        effect("soft_overlong_punishment", runs, "rollout/truncated_frac", -1),
    ]
    return [
        conclude(
            "C8",
            "sample-level loss: entropy, length and repetition grow",
            f"policy/entropy, {length}, {repeats}",
            "token-level loss off / on",
            *unhealthy,
        ),
        conclude(
            "C9",
            "token-level loss: a gain (a small one in the paper)",
            metric,
            "token-level loss on / off",
            effect("token_level_loss", runs, metric),
        ),
        conclude(
            "C10",
            "overlong filtering improves",
            metric,
            "filtering on / off",
            effect("overlong_filtering", runs, metric),
        ),
        conclude(
            "C11",
            "soft punishment improves, with fewer truncated answers",
            f"{metric}, rollout/truncated_frac",
            "soft punishment on / off",
            *soft,
        ),
        conclude("C12", "the KL term is not needed (at most 2 points worse without)", metric, "kl_sweep", *margins),
    ]


def _training(runs: Runs, metric: str) -> list[Claim]:
    rungs = [c for c in contrasts(runs.arms) if c.family == "ladder"] if "naive_grpo" in runs.arms else []
    table = scores(runs, metric)
    increments = [Part(c.label, list(by_seed(c, table).values()), metric) for c in rungs]
    half = Contrast("", "", None, {"dapo": 1.0, "naive_grpo": -1.0})
    reflecting = change(runs.of("dapo"), "rollout/reflection_frac")
    return [
        _reward_and_evaluation(runs, metric),
        _length(runs),
        _entropy_goes_with_results(runs, metric),
        conclude(
            "C16",
            "reflection is absent early and frequent later",
            "rollout/reflection_frac",
            "dapo",
            Part("rise", reflecting, "rollout/reflection_frac"),
        ),
        _spread(runs, metric),
        conclude(
            "C18",
            "every technique adds to the result",
            metric,
            "table1",
            *(increments if len(rungs) == len(LADDER) else ()),
        ),
        conclude(
            "C19",
            "DAPO needs half the steps of the reference",
            f"steps to reach its {metric}",
            "dapo against naive_grpo",
            share_of_budget(runs, half, metric, "step").saved("0.5 minus the ratio of steps", 0.5),
        ),
    ]


def _reward_and_evaluation(runs: Runs, metric: str) -> Claim:
    text = "training reward says little about validation accuracy (|rank correlation| < 0.5)"
    reward, held_out = "rollout/reward", metric.startswith("eval/")
    rhos = {run.name: rho for run in runs if held_out and (rho := rank_correlation(run, reward, metric)) is not None}
    far = seed_means(tuple(runs), {name: 0.5 - abs(rho) for name, rho in rhos.items()})
    if held_out and not far and len(runs):
        evaluations = max(len(run.series(metric)) for run in runs)
        few = f"at most {evaluations} evaluations a run, {CHECKPOINTS} are needed for a rank correlation"
        return Claim("C13", text, f"{reward}, {metric}", "any", "undecided", few)
    part = Part("0.5 minus |rho| over checkpoints", far, "rho")
    return conclude("C13", text, f"{reward}, {metric}", "any", part)


def _length(runs: Runs) -> Claim:
    """It may fall if it fell in some arm, beyond the spread of its seeds; it may not if it rose in every one."""
    key = "rollout/length_mean"
    falls = {arm: change(runs.of(arm), key, -1) for arm in runs.arms}
    verdicts = [judge(values) for values in falls.values() if values]
    fell = [arm for arm, values in falls.items() if judge(values) == "holds"]
    rose = len(verdicts) > 0 and all(verdict == "fails" for verdict in verdicts)
    verdict: Verdict = "not run" if not verdicts else "holds" if fell else "fails" if rose else "undecided"
    means = [sum(values) / len(values) for values in falls.values() if values]
    evidence = f"fell from first to last tenth in {len(fell)} of {len(means)} arms"
    evidence += f" ({', '.join(fell)})" if fell else ""
    evidence += f"; mean change of an arm {-max(means):+.1f} to {-min(means):+.1f} tokens" if means else ""
    return Claim("C14", "length may stagnate or fall", key, "any", verdict, evidence)


def _entropy_goes_with_results(runs: Runs, metric: str) -> Claim:
    """Within a seed, where all arms begin alike: between seeds, the base policies would be compared."""
    rhos = []
    for seed in runs.seeds:
        pairs = [
            (pair[1] - pair[0], reduced.last)
            for run in runs
            if run.seed == seed and (pair := ends(run, "rollout/entropy")) and (reduced := outcome(run, metric))
        ]
        rises, results = [rise for rise, _ in pairs], [result for _, result in pairs]
        if len(set(rises)) > 1 and len(set(results)) > 1:
            rhos.append(float(stats.spearmanr(rises, results).statistic))
    part = Part("rank correlation over the arms of a seed", rhos, "rho")
    text = "a slow rise of entropy goes with better results"
    return conclude("C15", text, f"rise of rollout/entropy, {metric}", "all, within a seed", part)


def _spread(runs: Runs, metric: str) -> Claim:
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
    part = Part(label, seed_means(tuple(runs), growth), metric)
    return conclude("C17", "small changes of initial conditions grow", metric, "any", part)
