"""The base policy that a task's config asks for, pre-trained on first use."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Policy, Task
from dapo_lit.files import replacing
from dapo_lit.policy.base import BaseSpec, Demonstrations, Stage, default_cache, prepare_base
from dapo_lit.tasks import chain_sum, four_sums, parity, string_programs

CHARACTERS = {
    "chain_sum": chain_sum.CHARACTERS,
    "parity": parity.CHARACTERS,
    "string_programs": string_programs.CHARACTERS,
    "four_sums": four_sums.CHARACTERS,
}
"""Vocabularies of the base policies."""


SHIPPED = Path("experiments")
"""The folder of committed studies, each with its base policies in a folder `bases`."""


def policy_folder(policy: Policy, task: Task) -> str | Path:
    """The policy's path, or the folder of the task's base policy: shipped with a study, cached, or pre-trained now."""
    if policy.path:
        return policy.path
    spec = base_spec(policy, task)
    return shipped(spec) or prepare_base(spec)


def base_spec(policy: Policy, task: Task) -> BaseSpec:
    """The recipe of a task's base policy."""
    if task.name not in CHARACTERS:
        raise ConfigError(f"policy.path is null and task.name={task.name} has no base policy; set policy.path")
    assert policy.architecture is not None
    stages = base_stages(task) if task.base else ()
    return BaseSpec(f"{task.label}-{policy.name}", policy.architecture, CHARACTERS[task.name], task.base_seed, stages)


def shipped(spec: BaseSpec) -> Path | None:
    """The base policy as a committed study has it, which comes before one of this machine; None if none has.

    Pre-training adds up in another order on another kind of processor, so a recipe gives the same weights only on
    machines of one kind. To extend a study, or to repeat its cells, takes its own weights.
    """
    found = {weights_of(folder): folder for folder in sorted(SHIPPED.glob(f"**/bases/{spec.folder_name()}"))}
    if len(found) > 1:
        listed = " and ".join(map(str, found.values()))
        raise ConfigError(f"{listed} are one base policy with different weights; move the one away that is not meant")
    return next(iter(found.values()), None)


def weights_of(folder: Path) -> str:
    """A hash of the weights in a policy's folder."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def base_weights(policy: Policy, task: Task) -> str | None:
    """A hash of the weights of the task's base policy; None for a policy from elsewhere."""
    return None if policy.path else weights_of(Path(policy_folder(policy, task)))


def pack_base(policy: Policy, task: Task, weights: str, bases: Path) -> str | None:
    """Copies the base policy with these weights into `bases`; a sentence where this machine does not have it."""
    spec = base_spec(policy, task)
    target = bases / spec.folder_name()
    if target.is_dir() and weights_of(target) == weights:
        return None
    source = default_cache() / spec.folder_name()
    if not source.is_dir() or weights_of(source) != weights:
        return f"the base policy {weights} (task.base_seed={task.base_seed}) is not in {default_cache()}: not packed"
    if target.is_dir():
        return f"{target} has other weights than {weights}: not packed"
    bases.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        shutil.copytree(source, draft)
    return None


def base_stages(task: Task) -> tuple[Stage, ...]:
    """The supervised stages of the task's base policy."""
    assert task.base is not None
    stages = [dict(settings, mixture=dict(settings["mixture"])) for settings in task.base["stages"]]
    if (share := task.base.get("long_chains")) is not None:
        mixture = stages[-1]["mixture"]
        if task.name == "parity":
            mixture["chains"] = share
        elif task.name == "string_programs":
            mixture |= {"immediate": 1 - share, "worked": share, "rambling": 0.0}
        else:
            mixture |= {"immediate": 1 - share, "running_sums": share, "checked": 0.0, "rambling": 0.0}
    try:
        return tuple(Stage(_mixture(task, settings.pop("mixture")), **settings) for settings in stages)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task.base of {task.label}: {error}") from None


def _mixture(task: Task, shares: dict[str, Any]) -> Demonstrations:
    if task.name == "parity":
        return parity.Mixture(**shares, strings=parity.Strings(**task.options))
    if task.name == "string_programs":
        return string_programs.Mixture(**shares, programs=string_programs.Programs(**task.options))
    return chain_sum.Mixture(**shares, sums=chain_sum.Sums(**task.options))
