"""The base policy that a task's config asks for, pre-trained on first use."""

import hashlib
from pathlib import Path
from typing import Any

from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Policy, Task
from dapo_lit.policy.base import BaseSpec, Demonstrations, Stage, prepare_base
from dapo_lit.tasks import chain_sum, four_sums, parity, string_programs

CHARACTERS = {
    "chain_sum": chain_sum.CHARACTERS,
    "parity": parity.CHARACTERS,
    "string_programs": string_programs.CHARACTERS,
    "four_sums": four_sums.CHARACTERS,
}
"""Vocabularies of the base policies."""


def policy_folder(policy: Policy, task: Task) -> str | Path:
    """The policy's path, or the folder of the task's base policy, pre-trained first if it is not cached.

    Raises:
        ConfigError: the policy has no path and the task no base.
    """
    if policy.path:
        return policy.path
    if task.name not in CHARACTERS:
        raise ConfigError(f"policy.path is null and task.name={task.name} has no base policy; set policy.path")
    assert policy.architecture is not None
    stages = () if policy.random_init or not task.base else base_stages(task)
    name = f"{task.label}-{policy.name}"
    return prepare_base(BaseSpec(name, policy.architecture, CHARACTERS[task.name], task.base_seed, stages))


def base_weights(policy: Policy, task: Task) -> str | None:
    """A hash of the weights of the task's base policy; None for a policy from elsewhere.

    Pre-training adds up in another order on another kind of processor, so a recipe gives the same weights only on
    machines of one kind.
    """
    if policy.path:
        return None
    file = Path(policy_folder(policy, task)) / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def base_stages(task: Task) -> tuple[Stage, ...]:
    """The supervised stages of the task's base policy.

    Raises:
        ConfigError: task.base or task.options hold what the task does not know.
    """
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
