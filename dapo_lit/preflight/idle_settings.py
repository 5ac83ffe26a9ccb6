"""Settings that can have no effect in a run, or hardly the one that was meant, reported at its start so that nobody
compares two arms that are the same.

What only the run can show is reported after its first steps: techniques that had next to nothing to act on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from ablations.techniques import REGISTER, Lookup
from dapo_lit.config import Algorithm, Config
from dapo_lit.config.sections import Task
from dapo_lit.config.shipped import choice
from dapo_lit.preflight.table import Finding
from dapo_lit.switches.algorithm import Objective, objective
from dapo_lit.switches.parts import (
    CORRECTION,
    LOSS,
    NO_PART,
    PENALTY,
    own_technique,
    part_of,
    parts_of,
    settings_met,
    small_groups,
    unread,
)
from dapo_lit.techniques import may_be_stale


def idle_settings(config: Config, bound: Objective) -> list[str]:
    """One line for each, with the idle key and the one that makes it so; `bound`: the objective of the config."""
    algorithm = config.algorithm
    idle = [*_techniques(config, bound.takes), *_punished(algorithm), *_unread(algorithm)]
    lines = [f"algorithm.{text}; no effect" for text in idle]
    lines += [f"{text}; no effect" for text in _unread_of_task(config.task)]
    lines += _at_cross_purposes(config)
    if (warmup := algorithm.optimizer.warmup_steps) > config.budget.steps:
        lines.append(
            f"algorithm.optimizer.warmup_steps={warmup}: the run ends after {config.budget.steps} steps, before the "
            "learning rate is algorithm.optimizer.lr"
        )
    if algorithm.techniques.clip_higher and "clip_high" in bound.takes and algorithm.clip.high < algorithm.clip.low:
        lines.append(
            f"algorithm.clip.high={algorithm.clip.high:g} is below clip.low={algorithm.clip.low:g}: the upper bound "
            "is the tighter one, as in a control; were they swapped?"
        )
    lines += _extremes(config)
    if algorithm.critic is not None and algorithm.critic.warmup_steps >= config.budget.steps:
        lines.append("the policy is not trained: critic.warmup_steps reaches budget.steps")
    return lines


EXTREME: dict[str, tuple[Callable[[float], bool], str]] = {
    "rollout.temperature": (
        lambda value: not 0.05 <= value <= 5,
        "samples are all but uniform over the vocabulary above 5, all but greedy and alike below 0.05",
    ),
    "algorithm.entropy.bonus": (
        lambda value: value > 1,
        "outweighs every advantage, whose standard deviation is about 1",
    ),
    "algorithm.kl.beta": (lambda value: value > 10, "the KL term outweighs every advantage"),
    "algorithm.optimizer.lr": (lambda value: value > 0.1, "an update of AdamW moves each weight by about so much"),
}
"""Values that are allowed and that nobody means: a slip of some powers of ten."""


def _extremes(config: Config) -> Iterator[str]:
    for key, (is_extreme, what) in EXTREME.items():
        if is_extreme(value := float(attrgetter(key)(config))):
            yield f"{key}={value:g}: {what}"


FIRST_STEPS = 5
"""Rollout steps after which a run says what its techniques had to act on."""


def idle_techniques(algorithm: Algorithm, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each technique that is on and had next to nothing to act on in these rows of metrics."""
    lines = []
    on = {f"techniques.{t}": record for t, record in REGISTER.items() if getattr(algorithm.techniques, t)}
    for switch, technique in (on | {path: own_technique(path) for path in algorithm.own_techniques}).items():
        acts, measured = technique.condition.judged(rows, on=True)
        if acts is False:
            lines.append(
                f"{switch} had next to nothing to act on in steps {rows[0]['step']} to {rows[-1]['step']}: "
                f"{measured}. {technique.condition.lever}"
            )
    return lines


def check_switches(config: Config) -> Finding:
    """Lists the techniques that are on, with a warning for each setting that can have no effect."""
    on = [switch for switch in REGISTER if getattr(config.algorithm.techniques, switch)]
    on += [own_technique(path).label for path in config.algorithm.own_techniques]
    on += [part.setting for part in parts_of(config.algorithm) if "." in part.name]
    lines = idle_settings(config, objective(config.algorithm, config.task.max_response_tokens))
    found = f"; {len(lines)} to look at" if lines else ""
    return Finding((", ".join(on) or "all off") + found, tuple(lines))


def _unread_of_task(task: Task) -> Iterator[str]:
    if task.name != "file":
        given = {"path": task.path, "eval_path": task.eval_path, "columns": task.columns}
        yield from (f"task.{key}={value}: task.name={task.name} makes its own" for key, value in given.items() if value)
    elif task.eval_path is None and task.num_heldout != choice("task", "file")["num_heldout"]:
        yield f"task.num_heldout={task.num_heldout}: task.eval_path is null, so no problem is held out"


def _punished(algorithm: Algorithm) -> list[str]:
    sampling, on = algorithm.dynamic_sampling, algorithm.techniques
    by_verdict = sampling.filter_on == "correctness" and sampling.on_exhausted != "top_up"
    if not (on.soft_overlong_punishment and on.dynamic_sampling and by_verdict):
        return []
    penalty = part_of(PENALTY, algorithm)
    mixed, wrong = map(penalty.function, small_groups(penalty)[:2])
    # As `all` does in the groups that are trained on, and otherwise only in those that are not.
    if (mixed == 1).all() and not (wrong == 1).all():
        return [f"{penalty.setting}: dynamic sampling trains on no group without a right answer"]
    return []


def _unread(algorithm: Algorithm) -> Iterator[str]:
    """Keys that nothing reads under the others, where they differ from the algorithm's own file."""
    idle = unread(algorithm)
    if not algorithm.techniques.clip_higher:
        idle["clip.high"] = "techniques.clip_higher is off"
    elif idle.get("clip.high"):
        del idle["clip.high"]  # the switch is named
    if not algorithm.kl.beta:
        idle |= dict.fromkeys(("kl.estimator", "kl.where"), "kl.beta=0")
    own = choice("algorithm", algorithm.family) or choice("algorithm", "dapo")
    for key, reason in idle.items():
        section, name = key.split(".")
        if (value := attrgetter(key)(algorithm)) != own[section][name]:
            yield f"{key}={value}: {reason}"
    band = algorithm.correction.band
    if band is not None and band[0] > 0 and algorithm.correction.kind != NO_PART:
        correction = part_of(CORRECTION, algorithm)
        if "low" not in correction.reads:
            yield f"correction.band[0]={band[0]:g}: {correction.setting} has an upper end only"


def _at_cross_purposes(config: Config) -> Iterator[str]:
    """Settings that act together otherwise than their names say."""
    algorithm = config.algorithm
    updates = algorithm.epochs * -(-algorithm.num_prompts // algorithm.minibatch_prompts)
    if algorithm.kl.beta and algorithm.kl.where == "loss" and algorithm.kl.estimator == "k1":
        yield (
            "algorithm.kl.estimator=k1 with kl.where=loss: its gradient has mean 0 over the policy's samples, so "
            "nothing holds the policy to the reference; use k2 or k3"
        )
    loss = part_of(LOSS, algorithm)
    if loss.needs.own_samples:
        if algorithm.correction.kind == NO_PART and (stale := may_be_stale(_lookup(config))):
            yield (
                f"algorithm.{loss.setting} has no ratio, so samples of older weights ({stale}) count as if they were "
                "new; set algorithm.correction.kind=tis"
            )
        if updates > 1:
            yield (
                f"algorithm.{loss.setting} has no ratio, and the later ones of {updates} updates a step train on "
                "samples of the policy before them; set algorithm.minibatch_prompts to num_prompts, and epochs=1"
            )
    for part in parts_of(algorithm):
        for setting in settings_met(part, algorithm, part.needs.warns):
            yield f"algorithm.{part.setting} with {setting}: {part.needs.warns[setting]}"


def _lookup(config: Config) -> Lookup:
    return lambda key: attrgetter(key)(config if key.startswith("rollout.") else config.algorithm)


def _techniques(config: Config, takes: Collection[str]) -> list[str]:
    """Switches that are on for nothing, and settings that belong to a switch in its other position."""
    algorithm, get = config.algorithm, _lookup(config)
    lines = []
    for switch, technique in REGISTER.items():
        on = getattr(algorithm.techniques, switch)
        reasons = [reason for idle in technique.idle if (reason := idle(get))]
        if reason := technique.without_argument({"loss": algorithm.loss}, takes):
            reasons = [reason]
        lines += [f"techniques.{switch}=true: {reason}" for reason in reasons if on]
        for setting in technique.settings:
            value = attrgetter(setting.key)(algorithm)
            if on != setting.while_on and value != setting.neutral:
                lines.append(f"{setting.key}={value}: techniques.{switch} is {'on' if on else 'off'}")
    return lines
