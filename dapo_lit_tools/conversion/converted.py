"""What became of the settings of a script of TRL's or verl's, and what of it several of them decide together: batches,
devices, and pairs and mappings that a command gives as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from dapo_lit.config.run import Config
from dapo_lit.config.sections import Section, section_of
from dapo_lit.config.shipped import is_group


@dataclass
class Conversion:
    """What became of the settings of a script; keys are as the script has them, in its order."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Choices of groups and dotted keys here."""
    notes: dict[str, str] = field(default_factory=dict)
    """Carried over, and not the same in every respect."""
    by_hand: dict[str, str] = field(default_factory=dict)
    """The key here, and what to give it."""
    without: dict[str, str] = field(default_factory=dict)
    """No counterpart, with the reason."""
    unknown: list[str] = field(default_factory=list)
    """Not in the table."""


@dataclass(frozen=True)
class Updates:
    """A number of updates, which is one of rollout steps once the updates in a step are known."""

    number: int


def is_on(value: object) -> bool:
    """Whether a switch, a limit or a section of theirs is one that acts: 0, -1 and null are off."""
    return bool(value) and not (isinstance(value, (int, float)) and value <= 0)


def fits(key: str, value: object) -> bool:
    """Whether the schema takes this value at this key, or a group has this choice."""
    schema: type[Section] | None = Config
    *sections, last = key.split(".")
    if isinstance(value, Updates) or (not sections and is_group(key)):
        return True
    for name in sections:
        known = schema.model_fields.get(name) if schema else None
        schema = section_of(known.annotation) if known else None
    described = schema.model_fields.get(last) if schema else None
    if described is None:
        return False
    try:
        whole: Any = Annotated[described.annotation, described]
        TypeAdapter(whole).validate_python(value)
    except ValidationError:
        return False
    return True


BATCH = "per_device_train_batch_size"
"""The word under which the arithmetic of TRL's batches is reported."""


def trl_batches(found: Conversion, words: Mapping[str, Any]) -> None:
    """TRL counts completions: those of an update on one device, and the updates for which it samples at once."""
    part, path = words.get("dataset_config"), found.settings.get("task.path")
    if isinstance(part, str) and isinstance(path, str):
        found.settings["task.path"] = f"{path}:{part}"
    accumulated = words["gradient_accumulation_steps"]
    # torchrun counts the processes of a machine, accelerate those of all.
    machines = words.get("nnodes", words.get("num_machines", 1))
    devices, sampled_for = words.get("num_processes"), words.get("steps_per_generation", accumulated)
    if devices is None:
        on_each = words.get("nproc_per_node", 1)
        devices = on_each * machines if type(on_each) is type(machines) is int else on_each
    per_device, group, epochs = words[BATCH], words["num_generations"], words["num_iterations"]
    keys = "algorithm.num_prompts, algorithm.minibatch_prompts"
    numbers = [per_device, accumulated, group, epochs, sampled_for, words.get("generation_batch_size", 1)]
    if not all(type(number) is int and number > 0 for number in [*numbers, devices, machines]):
        found.by_hand[BATCH] = f"{keys}: the script computes its batch sizes, or the number of its devices"
        _count_updates(found, None)
        return
    update = per_device * accumulated * devices
    sampled = words.get("generation_batch_size", per_device * devices * sampled_for)
    # An update over several samplings is one larger step.
    sampled = sampled * update // gcd(sampled, update) if sampled < update else sampled
    if update % group or sampled % update:
        found.by_hand[BATCH] = (
            f"{keys}: an update has {update} completions there, of {sampled} in groups of {group}; here whole groups"
        )
        _count_updates(found, None)
        return
    found.settings |= {"algorithm.num_prompts": sampled // group, "algorithm.minibatch_prompts": update // group}
    _put_devices(found, devices // machines, machines)
    updates = sampled // update * epochs
    found.notes[BATCH] = (
        f"an update has {update} completions ({_counted(update // group, 'prompt')} x {group}) on "
        f"{_counted(devices, 'device')}; a step has {_counted(updates, 'update')}"
    )
    _count_updates(found, updates)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _count_updates(found: Conversion, updates: int | None) -> None:
    """Turns numbers of updates into numbers of steps, rounded up."""
    for key, value in list(found.settings.items()):
        if isinstance(value, Updates):
            del found.settings[key]
            if updates is None:
                found.by_hand[key] = f"{key}: {value.number} updates there, rollout steps here"
            elif value.number >= 0:
                steps = -(-value.number // updates)
                found.settings[key] = steps
                if updates > 1:
                    found.notes[key] = f"{value.number} updates there are {_counted(steps, 'rollout step')} here"


def verl_batches(found: Conversion, words: Mapping[str, Any]) -> None:
    """verl counts prompts as here, and generated batches where it filters groups."""
    nodes, devices = words.get("nnodes"), words.get("n_gpus_per_node")
    if type(nodes) is int and type(devices) is int:
        _put_devices(found, devices, nodes)
    else:
        found.by_hand["nnodes"] = "trainer.num_nodes, trainer.devices: the script computes them"
    low = words.get("clip_ratio_low")
    if words.get("loss_mode") == "cispo" and isinstance(low, (int, float)) and low > 1:
        # A bound that no ratio reaches, which is how scripts turn it off.
        found.settings["algorithm.clip.low"] = 1.0
        found.by_hand = {key: said for key, said in found.by_hand.items() if not key.endswith("clip_ratio_low")}
    batches, size, sampled = words.get("max_num_gen_batches"), words["train_batch_size"], words.get("gen_batch_size")
    if not is_on(words.get("filter_groups.enable")):
        return
    if type(batches) is int and type(size) is int and min(batches, size) > 0:
        generated = batches * (sampled if type(sampled) is int else size)
        found.settings |= {f"{SAMPLING}.max_rounds": -(-generated // size), f"{SAMPLING}.on_exhausted": "error"}
    else:
        # 0, verl's default, is no limit.
        reason = "a step has a limit here; the script sets none, or computes it"
        found.by_hand["max_num_gen_batches"] = f"{SAMPLING}.max_rounds: {reason}"


def verl_kl(found: Conversion, words: Mapping[str, Any]) -> None:
    """verl may have a KL term in the loss and one in the reward at once; a run here has one."""
    if not (is_on(words.get("use_kl_loss")) and is_on(words.get("use_kl_in_reward"))):
        return
    for key in found.without:
        if key.rpartition(".")[2] in KL_IN_REWARD:
            found.without[key] = "one KL term here: that of the loss (use_kl_loss) is carried over, this one is not"


KL_IN_REWARD = ("use_kl_in_reward", "kl_coef", "kl_penalty")
"""Words of verl's about the KL term in the reward."""
SAMPLING = "algorithm.dynamic_sampling"


def _put_devices(found: Conversion, devices: int, machines: int) -> None:
    if found.settings.get("trainer") == "cpu":
        return
    if devices * machines == 1:
        found.settings["trainer"] = "gpu"
        return
    found.settings |= {"trainer": "fsdp", "trainer.devices": devices}
    if machines > 1:
        found.settings["trainer.num_nodes"] = machines


ENVIRONMENT = "turns.environment: "
WITH_ENVIRONMENT = {
    "turns.max_turns": "the script sets no limit, and an episode has one here",
    "turns.max_observation_tokens": "room for all answers of an episode; the script has no such limit",
    "turns.template": "what stands around an answer, as the chat format's tokens (docs/turns.md)",
}
"""What a script with tools leaves open."""


def complete(found: Conversion) -> None:
    """Whole pairs and mappings, and the two places that a run cannot do without."""
    settings = found.settings
    high = "algorithm.clip.high"
    # Equal bounds are no clip-higher.
    if high in settings and settings[high] == settings.get("algorithm.clip.low"):
        del settings[high]
        settings["algorithm.techniques.clip_higher"] = False
    for key, value in list(settings.items()):
        if isinstance(value, list) and None in value:
            found.by_hand[key] = f"{key}: both of a pair"
            del settings[key]
    if any(words.startswith(ENVIRONMENT) for words in found.by_hand.values()):
        found.by_hand |= {key: words for key, words in WITH_ENVIRONMENT.items() if key not in settings}
    for section in WHOLE:
        start = f"{section}."
        whole = {key.removeprefix(start): settings.pop(key) for key in [*settings] if key.startswith(start)}
        if whole and fits(section, whole):
            settings[section] = whole
        elif whole:
            found.by_hand[section] = f"{section}: all of it; the script says {', '.join(whole)}"
    for key, value in settings.items():
        if isinstance(value, str) and value.startswith("~/"):
            # Which a shell fills in only at the start of a word.
            settings[key] = f"$HOME/{value.removeprefix('~/')}"
    for key in ("policy.path", "task.path"):
        settings.setdefault(key, WANTED[key])


WHOLE = ("algorithm.critic", "algorithm.entropy.options", "algorithm.loss_options", "policy.lora")
"""Mappings that are null or empty here unless a command gives them as a whole."""


WANTED = {"policy.path": "MODEL", "task.path": "PROBLEMS"}
"""What stands in a command for a place that the script did not say."""
