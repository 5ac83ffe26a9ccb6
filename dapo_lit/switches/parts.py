"""The parts of an algorithm that a config names: built in, or a function of a user's file, `package.module.function`.

Each is a plain function, called with the first parameters of its slot. What else it reads are further parameters, and
they are filled in by name: what the slot has of the batch, settings of the config, and the part's own options.
What it needs of a run it declares (objective/needs.py). Both are read here, for every part alike.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ablations.designs import read_value
from ablations.errors import suggestion
from ablations.metrics import Metric
from ablations.techniques import Technique
from dapo_lit.config import Algorithm, Config, ConfigError
from dapo_lit.config.identity import kinds
from dapo_lit.imports import NamedError, named_object
from dapo_lit.objective.advantages import ESTIMATORS
from dapo_lit.objective.correction import CORRECTIONS
from dapo_lit.objective.covariance import LOSSES
from dapo_lit.objective.entropy_control import CONTROLLERS
from dapo_lit.objective.needs import Needs, needs_of
from dapo_lit.objective.shaping import PENALTIES


@dataclass(frozen=True)
class Slot:
    """A place in the algorithm that one part fills."""

    kind: str
    key: str
    """Below `algorithm`: the name of the part."""
    options: str
    """Below `algorithm`: the part's own options."""
    given: tuple[str, ...]
    """What the function is called with, in this order."""
    batch: tuple[str, ...]
    """Parameters that are filled from the batch."""
    settings: Mapping[str, str]
    """Parameter -> the key below `algorithm` that fills it."""
    built_in: Mapping[str, Callable[..., Any]]
    may_be_empty: bool = False
    """Its key may be `none`."""


LOSS = Slot(
    "loss", "loss", "loss_options", ("logprobs", "old_logprobs", "advantages"),
    batch=("completions", "mask", "entropy", "generator"),
    settings={"clip_low": "clip.low", "clip_high": "clip.high", "clip_dual": "clip.dual"}, built_in=LOSSES,
)  # fmt: skip
ESTIMATOR = Slot(
    "estimator", "advantage.estimator", "advantage.options", ("rewards",), batch=("lengths", "values"),
    settings={key: f"advantage.{key}" for key in ("scale_by_std", "epsilon", "gamma", "lam")}, built_in=ESTIMATORS,
)  # fmt: skip
PENALTY = Slot("penalty", "overlong.punish", "overlong.options", ("correct",), (), {}, PENALTIES)
CORRECTION = Slot(
    "correction", "correction.kind", "correction.options", ("old_logprobs", "rollout_logprobs"),
    batch=("completions",), settings={"low": "correction.band", "high": "correction.band", "cap": "correction.band"},
    built_in=CORRECTIONS, may_be_empty=True,
)  # fmt: skip
CONTROL = Slot(
    "controller of the entropy bonus", "entropy.control", "entropy.options", ("coefficient", "entropy"), (), {},
    CONTROLLERS, may_be_empty=True,
)  # fmt: skip
SLOTS = (LOSS, ESTIMATOR, PENALTY, CORRECTION, CONTROL)
NO_PART = "none"
"""The value of a key that fills its slot with nothing."""


def is_empty(slot: Slot, algorithm: Algorithm) -> bool:
    """True if the config fills a slot with nothing."""
    return slot.may_be_empty and attrgetter(slot.key)(algorithm) == NO_PART


@dataclass(frozen=True)
class Part:
    """A function in its slot, settings and options filled in."""

    slot: Slot
    name: str
    function: Callable[..., Any]
    reads: frozenset[str]
    """Parameters that settings and options fill."""
    wants: tuple[str, ...]
    """Parameters that the batch fills at every call."""
    needs: Needs

    @property
    def setting(self) -> str:
        """`advantage.estimator=group`."""
        return f"{self.slot.key}={self.name}"


def part_of(slot: Slot, algorithm: Algorithm, settings: Mapping[str, Any] | None = None) -> Part:
    """The part that the config names for a slot.

    settings: values of the slot's settings; None: those of the config.

    Raises ConfigError: there is none of that name, or a parameter or an option does not fit.
    """
    name, options = attrgetter(slot.key)(algorithm), attrgetter(slot.options)(algorithm)
    function = found(slot, name)
    _, others = parameters(slot, name, function)
    filled = {key: value for key, value in (settings or _settings(slot, algorithm)).items() if key in others}
    _check_options(slot, name, function, options, others)
    filled |= options
    wants = tuple(key for key in slot.batch if key in others)
    unfilled = [
        key
        for key, p in others.items()
        if key not in (*filled, *wants) and p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if unfilled:
        raise ConfigError(
            f"algorithm.{slot.key}={name}: nothing fills its parameter {unfilled[0]}; give algorithm.{slot.options}."
            f"{unfilled[0]} or a default. Filled are {', '.join((*slot.batch, *slot.settings))}"
        )
    declared = needs_of(function)
    reads = frozenset(filled) | frozenset(declared.reads) | {key for key in slot.settings if key in others}
    return Part(slot, name, partial(function, **filled) if filled else function, reads, wants, declared)


def found(slot: Slot, name: str) -> Callable[..., Any]:
    """The function of that name: built in, or imported by its dotted path."""
    if name in slot.built_in:
        return slot.built_in[name]
    if "." not in name:
        raise ConfigError(
            f"algorithm.{slot.key}={name}: no such {slot.kind}; there are {', '.join(slot.built_in)}, or give the path "
            "of a function of your own: package.module.function"
        )
    try:
        function: Any = named_object(name)
    except NamedError as error:
        raise ConfigError(f"algorithm.{slot.key}={name}: {error}") from error
    if not callable(function):
        raise ConfigError(f"algorithm.{slot.key}={name}: it is not a function")
    return function


def slot_of(path: str) -> Slot:
    """The slot of a function of the user's, by its first parameters.

    Raises ConfigError: they are those of no slot.
    """
    try:
        function: Any = named_object(path)
        names = [*inspect.signature(function).parameters]
    except (NamedError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for slot in SLOTS:
        if tuple(names[: len(slot.given)]) == slot.given:
            return slot
    forms = "; ".join(f"({', '.join(slot.given)}, ...): {slot.kind}" for slot in SLOTS)
    raise ConfigError(f"{path}: its first parameters say what it is, and it takes ({', '.join(names)}). {forms}")


def is_technique(path: str) -> bool:
    """True if the path leads to a technique's record, not to a function."""
    try:
        return isinstance(named_object(path), Technique)
    except NamedError:
        return False


def own_technique(path: str) -> Technique:
    """The record of a technique in a file of the user's.

    Raises ConfigError: there is none, or it does nothing.
    """
    try:
        record = named_object(path)
    except NamedError as error:
        raise ConfigError(f"algorithm.own_techniques: {error}") from error
    if not isinstance(record, Technique) or not (record.advantages or record.keeps):
        raise ConfigError(
            f"algorithm.own_techniques: {path} is no dapo_lit.techniques.Technique with a function, `advantages` or "
            "`keeps`"
        )
    return record


def own_techniques(algorithm: Algorithm) -> list[Technique]:
    """The records of the user's techniques that are on."""
    return [own_technique(path) for path in algorithm.own_techniques]


def own_metrics(config: Config) -> list[Metric]:
    """The metrics of the user's that a run logs: those of `logger.own_metrics`, and of its own techniques.

    Raises ConfigError: there is none at a path, or two have one name.
    """
    found: dict[str, Metric] = {}
    for path in dict.fromkeys((*config.logger.own_metrics, *config.algorithm.own_techniques)):
        try:
            record = named_object(path)
        except NamedError as error:
            raise ConfigError(f"logger.own_metrics: {error}") from error
        for metric in record.metrics if isinstance(record, Technique) else [record]:
            if not isinstance(metric, Metric) or metric.measure is None:
                raise ConfigError(
                    f"logger.own_metrics: {path} is no dapo_lit.techniques.Metric with a function `measure`, nor a "
                    "technique with some"
                )
            if found.setdefault(metric.key, metric) != metric:
                raise ConfigError(f"logger.own_metrics: two metrics have the name {metric.name}; rename one")
    return [*found.values()]


def parameters(
    slot: Slot, name: str, function: Callable[..., Any]
) -> tuple[tuple[str, ...], dict[str, inspect.Parameter]]:
    """The names of the parameters that it is called with, and the others."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C
        raise ConfigError(
            f"algorithm.{slot.key}={name}: the names of its parameters cannot be read; call it in a function of your "
            "own"
        ) from None
    every = list(signature.parameters.values())
    positional = [p.name for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # The losses of this package get both in a record each.
    given = TOKENS_AND_BOUNDS if tuple(positional[:2]) == TOKENS_AND_BOUNDS else slot.given
    if len(positional) < len(given):
        raise ConfigError(
            f"algorithm.{slot.key}={name}: it must take ({', '.join(given)}) and name what else it wants; it takes "
            f"{signature}"
        )
    first = tuple(positional[: len(given)])
    return first, {p.name: p for p in every if p.name not in first and p.kind is not p.VAR_POSITIONAL}


TOKENS_AND_BOUNDS = ("tokens", "bounds")


def _settings(slot: Slot, algorithm: Algorithm) -> dict[str, Any]:
    if slot is not CORRECTION:
        return {name: attrgetter(key)(algorithm) for name, key in slot.settings.items()}
    band = algorithm.correction.band  # null: the defaults of the function, which are its source's
    return {} if band is None else {"low": band[0], "high": band[1], "cap": band[1]}


def _check_options(
    slot: Slot,
    name: str,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    others: Mapping[str, inspect.Parameter],
) -> None:
    """Raises ConfigError for an option that the part does not have, of another type, or outside its range."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in others.values())
    own = [key for key in others if key not in (*slot.batch, *slot.settings)]
    types, ranges = inspect.get_annotations(function), needs_of(function).options
    if absent := [key for key in ranges if key not in own]:
        raise ConfigError(
            f"algorithm.{slot.key}={name}: its Needs has a range of {absent[0]}, and it has no such option"
            + (f"; {suggestion(absent[0], own)}" if own else "")
        )
    for key, value in options.items():
        at = f"algorithm.{slot.options}.{key}"
        if key not in own and not takes_any:
            has = f"{name} has no such option"
            raise ConfigError(f"{at}: {has}" + (f"; {suggestion(key, own)}" if own else ""))
        # A text where the file has `from __future__ import annotations`.
        kind = PLAIN.get(str(types.get(key)), types.get(key))
        if not _is_of(kind, value):
            raise ConfigError(f"{at}={value}: {name} takes a value of type {kind.__name__}")
        low, high = ranges.get(key, (None, None))
        if low is not None and high is not None and not (_is_of(float, value) and low <= value <= high):
            raise ConfigError(f"{at}={value}: {name} takes {interval(low, high)}")


PLAIN: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}


def _is_of(kind: object, value: object) -> bool:
    """True unless an option's annotation is one of the plain types and its value is of another."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind not in (bool, str) or isinstance(value, kind)


def interval(low: float, high: float) -> str:
    """A range in words.

    >>> interval(0, float("inf")), interval(-1, 1)
    ('at least 0', '-1 to 1')
    """
    if high == inf:
        return f"at least {low:g}"
    return f"at most {high:g}" if low == -inf else f"{low:g} to {high:g}"


def parts_of(algorithm: Algorithm) -> Iterator[Part]:
    """The part of each slot that has one."""
    for slot in SLOTS:
        if not is_empty(slot, algorithm):
            yield part_of(slot, algorithm)


def check_needs(algorithm: Algorithm) -> None:
    """Raises ConfigError where a part needs what the algorithm does not have, or does not go with a setting of it."""
    wants_critic = False
    for part in parts_of(algorithm):
        if algorithm.samples_per_prompt < part.needs.group:
            raise ConfigError(
                f"algorithm.samples_per_prompt={algorithm.samples_per_prompt}: {part.setting} compares within a group "
                f"and needs at least {part.needs.group}{_source(part)}"
            )
        for setting in settings_met(part, algorithm, part.needs.refuses):
            raise ConfigError(f"algorithm.{setting}: not with {part.setting}: {part.needs.refuses[setting]}")
        wants_critic |= "values" in part.wants
    if wants_critic != (algorithm.critic is not None):
        estimator = f"algorithm.advantage.estimator={algorithm.advantage.estimator}"
        raise ConfigError(
            f"{estimator} reads the values of a critic: set one (algorithm=ppo shows how), or take another estimator"
            if wants_critic
            else f"{estimator} reads no critic: set algorithm.critic=null, or an estimator that does, such as gae"
        )


def check_rewards(config: Config) -> None:
    """Raises ConfigError where a part needs rewards of a range that the settings leave. What a function of the user's
    rewards is not known here: `switches.algorithm.credit` looks at it."""
    algorithm, reward = config.algorithm, config.reward
    share = part_of(PENALTY, algorithm)
    for part in parts_of(algorithm):
        low, high = part.needs.rewards
        needs = f"algorithm.{part.setting} needs rewards of {interval(low, high)}{_source(part)}"
        if (low, high) != (-inf, inf) and algorithm.kl.beta and algorithm.kl.where == "reward":
            raise ConfigError(f"{needs}, and algorithm.kl.where=reward subtracts from them; set kl.where=loss")
        if reward.function or reward.weights:
            continue
        wrong_value, faults = reward.wrong_value, []
        if not low <= wrong_value <= high:
            faults.append(f"reward.wrong_value={wrong_value} is none (set reward.wrong_value=0)")
            wrong_value = 0
        if not low <= 1 <= high:
            raise ConfigError(f"{needs}, and a right answer has 1; give a reward function of your own")
        if part.needs.both_signs and reward.wrong_value >= 0:
            raise ConfigError(
                f"algorithm.{part.setting} needs negative rewards of wrong answers{_source(part)}; set "
                "reward.wrong_value=-1"
            )
        if algorithm.techniques.soft_overlong_punishment:
            least = least_reward(wrong_value, algorithm.overlong.penalty_factor, share)
            if least < low:
                faults.append(
                    f"algorithm.techniques.soft_overlong_punishment takes them down to {least:g} (switch it off, in a "
                    "study by an arm without it, or set algorithm.overlong.punish=right)"
                )
        if faults:
            raise ConfigError(f"{needs}: {', and '.join(faults)}")


def least_reward(wrong_value: float, factor: float, penalty: Part) -> float:
    """The smallest reward after the length penalty, in a group with right and wrong answers or with wrong ones only."""
    least = 0.0
    for verdicts in small_groups(penalty)[:2]:
        shares = penalty.function(verdicts).tolist()
        rewards = [1.0 if right else wrong_value for right in verdicts.tolist()]
        least = min(least, *(reward - factor * part for reward, part in zip(rewards, shares, strict=True)))
    return least


def small_groups(part: Part) -> list[Tensor]:
    """Verdicts of the smallest groups that a part works with: one answer is right, none, all."""
    size = max(2, part.needs.group)
    return [torch.arange(size, device="cpu") < right for right in (1, 0, size)]


def settings_met(part: Part, algorithm: Algorithm, settings: Mapping[str, str]) -> list[str]:
    """Those of the settings in a part's declaration, written `key=value`, that the algorithm has.

    Raises ConfigError: there is no such key below `algorithm`.
    """
    return [text for text in settings if _is_met(part, algorithm, text)]


def _is_met(part: Part, algorithm: Algorithm, text: str) -> bool:
    key, _, value = text.partition("=")
    if key not in algorithm_keys():
        raise ConfigError(
            f"algorithm.{part.setting}: its Needs names the setting {text}; {suggestion(key, algorithm_keys())}"
        )
    found: Any = algorithm
    for name in key.split("."):
        found = getattr(found, name, None)  # below a critic that is null
    # As a config has it: `null`, and 0 for 0.0.
    wanted = read_value(value)
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


@cache
def algorithm_keys() -> list[str]:
    """Every key below `algorithm`."""
    return [key.removeprefix("algorithm.") for key in kinds() if key.startswith("algorithm.")]


def unread(algorithm: Algorithm) -> dict[str, str]:
    """Keys below `algorithm` that a part could read and the one that is there does not, and why."""
    idle: dict[str, str] = {}
    for slot in SLOTS:
        reads = frozenset[str]() if is_empty(slot, algorithm) else part_of(slot, algorithm).reads
        read = {key for name, key in slot.settings.items() if name in reads}
        name = f"{slot.key}={attrgetter(slot.key)(algorithm)}"
        idle |= {key: f"{name} does not read it" for key in slot.settings.values() if key not in read}
    return idle


def _source(part: Part) -> str:
    return f" ({part.needs.source})" if part.needs.source else ""
