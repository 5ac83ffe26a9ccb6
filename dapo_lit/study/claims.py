"""The register of the paper's claims: each with its metric, its arms, and whether these runs support it.

Verdicts follow one rule (verdicts.py) and are not adjusted over the register: of nineteen, one may be wrong by chance.
"""

from scipy import stats

from dapo_lit.study.contrasts import Contrast, contrasts
from dapo_lit.study.health import ends
from dapo_lit.study.outcomes import outcome, scores
from dapo_lit.study.runs import Runs
from dapo_lit.study.statistics import t_interval
from dapo_lit.study.verdicts import (
    Claim,
    Part,
    Verdict,
    by_seed,
    change,
    conclude,
    contrast_for,
    difference_of,
    effect,
    rank_correlation,
    seed_means,
    share_of_budget,
)


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
            Part("steps saved, share", [1 - ratio for ratio in steps], "ratio"),
            Part("1.25 minus the ratio of times", [1.25 - ratio for ratio in slower], "ratio"),
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
            "token-level loss: a small gain",
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
    rewards = {
        run.name: 0.5 - abs(rho) for run in runs if (rho := rank_correlation(run, "rollout/reward", metric)) is not None
    }
    falls = {run.name: pair[1] - pair[0] for run in runs if (pair := ends(run, "rollout/length_mean"))}
    shrinking = sum(change < 0 for change in falls.values())
    rungs = [c for c in contrasts(runs.arms) if c.family == "ladder"] if "naive_grpo" in runs.arms else []
    table = scores(runs, metric)
    increments = [Part(c.label, list(by_seed(c, table).values()), metric) for c in rungs]
    half = Contrast("", "", None, {"dapo": 1.0, "naive_grpo": -1.0})
    halves = [0.5 - ratio for ratio in share_of_budget(runs, half, metric, "step")]
    reflecting = change(runs.of("dapo"), "rollout/reflection_frac")
    return [
        conclude(
            "C13",
            "training reward says little about validation accuracy (|rank correlation| < 0.5)",
            f"rollout/reward, {metric}",
            "any",
            Part("0.5 minus |rho| over checkpoints", seed_means(tuple(runs), rewards), "rho"),
        ),
        Claim(
            "C14",
            "length may stagnate or fall",
            "rollout/length_mean",
            "any",
            ("holds" if shrinking else "undecided") if falls else "not run",
            f"length fell from first to last tenth in {shrinking} of {len(falls)} runs",
        ),
        _entropy_goes_with_results(runs, metric),
        conclude(
            "C16",
            "reflection is absent early and frequent later",
            "rollout/reflection_frac",
            "dapo",
            Part("rise", reflecting, "rollout/reflection_frac"),
        ),
        _spread(runs, metric),
        conclude("C18", "every technique adds to the result", metric, "table1", *increments),
        conclude(
            "C19",
            "DAPO needs half the steps of the reference",
            f"steps to reach its {metric}",
            "dapo against naive_grpo",
            Part("0.5 minus the ratio of steps", halves, "ratio"),
        ),
    ]


def _entropy_goes_with_results(runs: Runs, metric: str) -> Claim:
    pairs = [
        (pair[1] - pair[0], reduced.last)
        for run in runs
        if (pair := ends(run, "rollout/entropy")) and (reduced := outcome(run, metric))
    ]
    text, keys = "a slow rise of entropy goes with better results", f"rollout/entropy, {metric}"
    if len(pairs) < 5 or len({a for a, _ in pairs}) < 2 or len({b for _, b in pairs}) < 2:
        return Claim("C15", text, keys, "all runs", "undecided" if pairs else "not run", f"{len(pairs)} runs")
    rho, p = stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])
    verdict: Verdict = "undecided" if p > 0.05 else "holds" if rho > 0 else "fails"
    return Claim(
        "C15",
        text,
        keys,
        "all runs",
        verdict,
        f"rank correlation {rho:+.2f} over {len(pairs)} runs (arms and seeds mixed), p {p:.3g}",
    )


def _spread(runs: Runs, metric: str) -> Claim:
    """Standard deviation over seeds at the end minus at the first evaluation after the start, a number an arm."""
    growth = []
    for arm in runs.arms:
        table = [series[series.index > 0] for run in runs.of(arm) if len(series := run.series(metric)) > 2]
        if len(table) >= 3:
            first, last = [float(s.iloc[0]) for s in table], [float(s.iloc[-1]) for s in table]
            growth.append((t_interval(last).sd or 0.0) - (t_interval(first).sd or 0.0))
    part = Part("growth of the spread over seeds, a number an arm", growth, metric)
    return conclude("C17", "small changes of initial conditions grow", metric, "any", part)
