"""One number a run for comparisons, and how numbers of each metric are printed."""

from dataclasses import dataclass

from dapo_lit.study.read.runs import Run, Runs, StudyError


@dataclass(frozen=True)
class Outcome:
    """A metric of one run, reduced."""

    last: float
    """Mean of the last points: the number that arms are compared on."""
    points: int
    """Number of points: a third of the checkpoints, at most three; a tenth where a metric has more than 30 values."""


def outcome(run: Run, key: str) -> Outcome | None:
    """Reduces a metric of a run; None where it was not logged after step 0, or was NaN or infinite somewhere."""
    series = run.series(key)
    values = series.to_numpy()[series.index.to_numpy() > 0]
    count = len(values)
    if not count or run.spoilt(key):
        return None
    points = max(1, min(3, count // 3)) if count <= 30 else count // 10
    if key.startswith("eval/") and (run.config.get("evaluation") or {}).get("final_samples"):
        points = 1  # the last evaluation has far more samples than those before it
    return Outcome(float(values[-points:].mean()), points)


def window_mean(run: Run, key: str, steps: tuple[int, int] | None) -> float | None:
    """A metric averaged over rollout steps; over the run's last values where no steps are named; None without any."""
    if steps is None:
        reduced = outcome(run, key)
        return reduced.last if reduced else None
    values = run.series(key).loc[steps[0] : steps[1]]
    return None if values.empty or run.spoilt(key) else float(values.mean())


def scores(runs: Runs, key: str) -> dict[str, dict[int, float]]:
    """The outcome of every usable run: arm -> seed -> number. Runs without one are absent."""
    table: dict[str, dict[int, float]] = {arm: {} for arm in runs.arms}
    for run in runs:
        reduced = outcome(run, key) if run.usable else None
        if reduced is not None:
            table[run.arm][run.seed] = reduced.last
    return table


def bases(runs: Runs) -> dict[int, str]:
    """The base policy of each seed: that of its first arm that recorded it."""
    found: dict[int, str] = {}
    for run in sorted(runs, key=lambda run: run.record.get("base_weights") is None):
        found.setdefault(run.seed, run.base)
    return found


def primary_metric(runs: Runs, registered: str | None = None) -> str:
    """The metric that arms are compared on: the registered one, else avg@k of the first benchmark, else the training
    accuracy.

    Raises:
        StudyError: no usable run logged it after step 0.
    """
    keys = runs.usable.keys()
    found = [key for key in keys if key.startswith("eval/") and "/avg@" in key]
    candidates = [registered] if registered else [*found, "rollout/accuracy"]
    for key in candidates:
        if any(outcome(run, key) for run in runs.usable):
            return key
    wanted = " or ".join(candidates)
    raise StudyError(f"no finished run logged {wanted} after step 0, so there is nothing to compare arms on")


def is_share(key: str) -> bool:
    """True for a share, which reports print in points of a hundred."""
    return "@" in key or key.endswith(("accuracy", "_frac"))


def amount(key: str, value: float | None, signed: bool = False) -> str:
    """A value of a metric as reports print it, a dash for none; shares in points.

    >>> amount("rollout/accuracy", 0.051, signed=True), amount("rollout/entropy", 0.0512), amount("optim/lr", None)
    ('+5.1', '0.0512', '–')
    """
    if value is None or value != value:
        return "–"
    if is_share(key):
        value = round(value, 3) + 0.0  # no minus before a zero
        return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
    return f"{value:+.3g}" if signed else f"{value:.3g}"


def unit(key: str) -> str:
    """The unit of `amount`."""
    if is_share(key):
        return "points"
    return "nats" if "entropy" in key else "tokens" if "length" in key and not key.endswith("length_cv") else ""
