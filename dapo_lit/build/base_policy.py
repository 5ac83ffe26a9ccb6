"""The base policy that a task's config asks for: where it is from, which weights it has; pre-trained on first use."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ablations.errors import DamagedError
from ablations.files.atomic import replacing
from ablations.files.manifest import read_manifest
from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Policy, Task
from dapo_lit.policy.base import BaseSpec, Stage, default_cache, prepare_base
from dapo_lit.policy.digests import weights_of
from dapo_lit.tasks.generated import characters, generated

WEIGHTS = "model.safetensors"
SHIPPED = Path(__file__).parent.parent / "base_policies"
"""Base policies that come with the package. Their manifest has the hashes of their weights; README.md, their origin."""


@dataclass(frozen=True)
class BasePolicy:
    """A base policy on disk."""

    folder: Path
    weights: str
    """The hash of its weights. A recipe does not decide them: pre-training adds up in another order on another kind of
    processor."""
    origin: str
    """Where it is from, as run.json and the table of checks say it."""


def policy_folder(policy: Policy, task: Task) -> str | Path:
    """The policy's path, or the folder of the task's base policy, which is pre-trained if it is not there yet."""
    return policy.path or find_base(policy, task).folder


def base_spec(policy: Policy, task: Task) -> BaseSpec:
    """The recipe of a task's base policy."""
    if (vocabulary := characters(task.name)) is None:
        raise ConfigError(f"policy.path is null and task.name={task.name} has no base policy; set policy.path")
    assert policy.architecture is not None
    stages = base_stages(task) if task.base else ()
    return BaseSpec(f"{task.label}-{policy.name}", policy.architecture, vocabulary, task.base_seed, stages)


def find_base(policy: Policy, task: Task) -> BasePolicy:
    """The task's base policy: in the folder `policy.base_from`; else the package's; else this machine's.

    Nothing else is searched: which weights a command starts from depends on neither the working directory nor what
    lies near it.

    Raises ConfigError: `policy.base_from` has none of this recipe.
    Raises DamagedError: the package's is missing or has other weights than it was shipped with.
    """
    name = base_spec(policy, task).folder_name()
    if policy.base_from is not None:
        folder = Path(policy.base_from).expanduser() / name
        if not (folder / WEIGHTS).is_file():
            missing = f"there is no {name}" if folder.parent.is_dir() else "no such folder"
            raise ConfigError(
                f"policy.base_from={policy.base_from}: {missing} (base policy {task.base_seed} of {task.label}); null "
                "takes the package's, or pre-trains one"
            )
        return BasePolicy(folder, weights_of(folder), f"policy.base_from={policy.base_from}")
    if shipped := (read_manifest(SHIPPED) or {}).get("bases", {}).get(name):
        folder = SHIPPED / name
        if not (folder / WEIGHTS).is_file() or weights_of(folder) != shipped["weights"]:
            raise DamagedError(f"{folder} is not as it was shipped; install the package again")
        return BasePolicy(folder, shipped["weights"], f"shipped with dapo_lit (made on {shipped['processor']})")
    folder = prepare_base(base_spec(policy, task))
    place = str(folder.parent).replace(str(Path.home()), "~", 1)  # it stands in run.json, which people share
    return BasePolicy(folder, weights_of(folder), f"pre-trained on this machine, {place}")


def pack_base(policy: Policy, task: Task, weights: str, bases: Path) -> str | None:
    """Copies the base policy with these weights into `bases`; a sentence where this machine does not have it."""
    name = base_spec(policy, task).folder_name()
    target = bases / name
    if (target / WEIGHTS).is_file():
        return None if weights_of(target) == weights else f"{target} has other weights than {weights}: not packed"
    places = [Path(policy.base_from).expanduser()] if policy.base_from else [SHIPPED, default_cache()]
    has = (p / name for p in places if (p / name / WEIGHTS).is_file() and weights_of(p / name) == weights)
    if (source := next(has, None)) is None:
        searched = " or ".join(map(str, places))
        return f"the base policy {weights} (task.base_seed={task.base_seed}) is not in {searched}: not packed"
    bases.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        shutil.copytree(source, draft)
    return None


def base_stages(task: Task) -> tuple[Stage, ...]:
    """The supervised stages of the task's base policy."""
    assert task.base is not None
    stages = [dict(settings, mixture=dict(settings["mixture"])) for settings in task.base["stages"]]
    own = generated(task.name)
    if (share := task.base.get("long_chains")) is not None:
        try:
            stages[-1]["mixture"] |= own.long_chains(share)
        except ValueError as error:
            raise ConfigError(f"task.base.long_chains of {task.label}: {error}") from None
    try:
        return tuple(Stage(own.mixture(settings.pop("mixture"), task.options), **settings) for settings in stages)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task.base of {task.label}: {error}") from None
