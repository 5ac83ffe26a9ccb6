"""`+study=fork`: continues a run from training states that it kept, under its own switches and under others.

Each state is a study of its own: states of one run are not replicates. A cell has the config in the run's folder with
the values of an arm. Its seed is the stream of sampling noise; the run's seed decides problem order and mini-batches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from ablations.designs import Arm, Design
from ablations.files.layout import CONFIG, kept_states
from ablations.files.record import read_config
from ablations.techniques import REGISTER
from ablations.trainer import flatten
from dapo_lit.cli.overrides import is_inspection, parsed_overrides
from dapo_lit.config import Config, ConfigError, config_folder
from dapo_lit.config.foreign import foreign_config
from dapo_lit.config.identity import kind_of, put
from dapo_lit.config.sections import HORIZON, SCIENCE
from dapo_lit.imports import named_in

if TYPE_CHECKING:
    from ablations.read.registration import Family

FORK = "fork"
OWN = ("study", "study_name", "runs_dir", "resume", "logger", "callbacks", "replay", "fork")
"""Keys that a fork does not take from its run."""
CHANGEABLE = ("algorithm.", "reward.", "rollout.temperature")
PLACES = ("rollout.vllm.server.urls", "rollout.vllm.server.folder")
"""Keys with places that weights are sent to, which a run folder from elsewhere does not choose."""
FIXED = (
    "algorithm.family", "algorithm.critic", "algorithm.samples_per_prompt", "algorithm.optimizer.betas",
    "algorithm.optimizer.eps", "algorithm.optimizer.weight_decay",
)  # fmt: skip
"""Keys of an arm that would change nothing, or not fit, because the state holds them."""


def for_each_state(arguments: Sequence[str]) -> list[list[str]]:
    """The command line of a fork study once for every state that it names; any other command line as it is."""
    typed = _typed(arguments)
    if "study" not in typed or typed["study"] != FORK or is_inspection(arguments):
        return [list(arguments)]
    if "fork.run" not in typed:
        raise ConfigError(
            "fork.run is needed: the folder of the run to continue, such as fork.run=runs/dapo/dapo/seed_0"
        )
    run = Path(str(typed["fork.run"]))
    config = foreign_config(read_config(run), run / CONFIG, named_in(typed))
    kept, asked = kept_states(run), typed.get("fork.steps")
    steps = asked if isinstance(asked, list) else kept if asked is None else [asked]
    if not steps or (absent := [step for step in steps if step not in kept]):
        never = "; with rollout.steps_ahead it keeps none" if config.rollout.steps_ahead else ""
        raise ConfigError(
            f"fork.steps: {run} kept {f'no state before step {absent[0]}' if steps else 'no training state'}"
            f"{f' (kept: {kept})' if kept else ''}; a run keeps those before steps 4 and 8 with "
            f"'replay.record=[4,8]'{never}"
        )
    if len(steps) > 1 and not {"-m", "--multirun"} & set(arguments):
        raise ConfigError(f"fork.steps={steps}: one cell continues one state, such as fork.steps=[{steps[0]}]")
    others = [argument for argument in arguments if not argument.startswith("fork.steps=")]
    return [[*others, f"fork.steps=[{step}]"] for step in steps]


def continued(tree: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The config of a fork: that of its run, with the composed values of its own keys and what was typed."""
    if tree["study"] is None or tree["fork"].get("run", MISSING) == MISSING:
        raise ConfigError("fork: a run is continued by +study=fork fork.run=FOLDER, such as runs/dapo/dapo/seed_0")
    steps = tree["fork"]["steps"]
    if not isinstance(steps, list) or len(steps) > 1:
        raise ConfigError(f"fork.steps={steps}: one cell continues one state, such as fork.steps=[4]")
    run, (step,), typed = Path(tree["fork"]["run"]), steps, _typed(arguments)
    of_run = foreign_config(read_config(run), run / CONFIG, named_in(typed)).model_dump(mode="json")
    found: dict[str, Any] = of_run | {key: tree[key] for key in OWN}
    found["study_name"] += f"/{'_'.join(run.resolve().parts[-3:])}/step_{step:06d}"
    found["rollout"]["noise_stream"] = tree["seed"]
    found["preflight"] = False  # the run had it
    found["budget"]["tokens_generated"] = None
    if found["policy"]["path"] is None:
        found["study"]["bases"] = [found["task"]["base_seed"]]  # one: that of the run
    flat = flatten(found)
    for key in PLACES:
        if flat[key] and key not in typed:
            raise ConfigError(f"{run} sent its weights to {key}={flat[key]}; a fork needs that on the command line too")
    for key, value in flatten(typed).items():
        if key == "seed" or key.split(".")[0] in OWN or (key in flat and value == flat[key]):
            continue
        if kind_of(key) in (SCIENCE, HORIZON) or key == "trainer.strategy" or (config_folder() / key).is_dir():
            raise ConfigError(
                f"{key}: a fork has the settings of its run, {run}; another value of a setting is an arm, "
                "such as 'study.arms=[\"dapo@optimizer.lr=0.0001\"]'"
            )
        put(found, key, value)
    return found


def fork_arms(config: Config) -> list[str]:
    """The run's own switches, and the arms that were named: by default each technique toggled."""
    on = frozenset(technique for technique, is_on in config.algorithm.techniques.model_dump().items() if is_on)
    return [Arm(on).name, *(config.own_study.arms or [Arm(on ^ {technique}).name for technique in REGISTER])]


def check_changes(arms: Sequence[Arm]) -> None:
    """Raises ConfigError for an arm that changes what the state holds."""
    for key in (key for arm in arms for key in arm.settings):
        if not key.startswith(CHANGEABLE) or key.startswith(FIXED):
            raise ConfigError(f"study.arms: {key} is part of the state that a fork continues; an arm cannot change it")


def fork_families(design: Design, config: Config) -> "tuple[Family, ...]":
    """With minus without for a technique, an arm minus the run for anything else, over the last half of the horizon."""
    from ablations.read.outcomes import in_words
    from ablations.read.registration import Family, Registered

    assert config.fork is not None
    own, *others = design.arms
    metric, last = config.own_study.metric, config.last_step
    members = []
    for arm in others:
        toggled = arm.on ^ own.on
        technique = next(iter(toggled)) if len(toggled) == 1 and not arm.settings else None
        treated, control = (own, arm) if technique in own.on else (arm, own)
        weights = {treated.name: 1.0, control.name: -1.0}
        steps = (last - (config.fork.horizon - 1) // 2, last)
        members.append(Registered(technique or arm.name, technique, weights, metric, in_words(metric), steps=steps))
    return (Family("from here on", config.own_study.alpha, tuple(members)),)


def _typed(arguments: Sequence[str]) -> dict[str, Any]:
    """The keys and groups of a command line with their values."""
    given = parsed_overrides(argument for argument in arguments if not argument.startswith("~"))
    return {override.key_or_group: override.value() for override in given if not override.is_sweep_override()}
