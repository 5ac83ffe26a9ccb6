"""Changes that a resumed run may have: where and how fast it computes, and where it ends; never what it learns."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablations.errors import DamagedError
from ablations.files.layout import CHECKPOINTS, before_step
from ablations.files.manifest import sum_of
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_config, read_record
from ablations.files.run_manifest import step_of
from ablations.inputs import Inputs, are_several, in_words, unexplained
from ablations.trainer import flatten
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.identity import differences, identity, kind_of, with_defaults
from dapo_lit.config.sections import EXECUTION, HORIZON
from dapo_lit.runs.checkpoint_files import damage_reason


def changes_on_resume(run: Path, config: Config) -> dict[str, list[Any]]:
    """Execution and horizon keys in which `config` differs from the run in this folder: {key: [old, new]}.

    Raises ConfigError: the run is another experiment, has gone beyond the new budget, or its checkpoints cannot be read
    by the new strategy.
    """
    before, after = with_defaults(read_config(run)), config.model_dump(mode="json")
    different = differences(identity(before), identity(after))
    if science := {key: values for key, values in different.items() if kind_of(key) is not HORIZON}:
        raise ConfigError(
            f"the run in {run} has another config in its config.yaml ({describe(science)}); resume it with its own, or "
            "start a new run with resume=false"
        )
    done = progress(run)
    for key, (_, limit) in different.items():
        reached = done[key.removeprefix("budget.")]
        if limit is not None and limit < reached:
            raise ConfigError(
                f"{key}={limit}, but the run in {run} has reached {reached:g}; a budget cannot end before what is done"
            )
    changed = differences(flatten(before), flatten(after))
    if "trainer.strategy" in changed and any((run / CHECKPOINTS).glob("step_*.ckpt")):
        old, new = changed["trainer.strategy"]
        raise ConfigError(
            f"the checkpoints in {run} were written with trainer.strategy={old}, and trainer.strategy={new} cannot "
            f"read them; resume with trainer.strategy={old}"
        )
    return {key: values for key, values in changed.items() if kind_of(key) in (EXECUTION, HORIZON)}


def check_inputs(run: Path, tree: Mapping[str, Any], inputs: Inputs, instead: str) -> None:
    """Raises ConfigError if a run that is to be continued read something else than there is now, under its settings.

    tree, inputs: of the run that would be made. instead: what to do if it is meant so.
    """
    refuse_other_inputs(str(run), read_record(run), read_config(run), tree, inputs, instead)


def refuse_other_inputs(
    name: str,
    record: Mapping[str, Any],
    known: Mapping[str, Any],
    tree: Mapping[str, Any],
    inputs: Inputs,
    instead: str,
) -> None:
    """Raises ConfigError if a run, given by its run.json and its config, read something else than there is now."""
    if names := unexplained(record, known, {"inputs": inputs}, tree):
        has, them = ("have", "them") if are_several(names) else ("has", "it")
        raise ConfigError(
            f"{in_words(names, tree)} {has} changed since {name} read {them}; restore {them}, or {instead}"
        )


def progress(run: Path) -> dict[str, float]:
    """The part of each budget that the run has spent."""
    row = (read_metrics(run).rows or [{}])[-1]
    return {"steps": row.get("step", 0), "tokens_generated": row.get("tokens_generated", 0)}


def forked_from(config: Config) -> tuple[Path | None, dict[str, Any]]:
    """The training state that a fork starts from, with what its run.json says of it; None for any other run.

    Raises ConfigError, DamagedError: the run did not keep it, or it is damaged.
    """
    state = _state_of(config)
    if state is None or config.fork is None:
        return None, {}
    run, step = Path(config.fork.run), step_of(state.name)
    if not state.exists():
        raise ConfigError(f"{state}: no such training state; 'replay.record=[{step}]' of a run keeps it")
    if reason := damage_reason(state):
        raise DamagedError(f"{state} is damaged ({reason}); fork from another step of {run}")
    digest = state_digest(config)
    # In place of the base policy's: forks of one state share their start, and of two states they do not.
    start = {"base_weights": digest, "base_origin": f"the state before step {step} of {run}"}
    return state, {"origin": {"run": str(run), "step": step, "state": digest}} | start


def check_reference(run: Path, config: Config, weights: str | None) -> None:
    """Refuses to go on from a run with another reference policy than it had.

    A checkpoint does not hold the reference: it is the base policy, loaded anew, and that of another machine or another
    folder may have other weights.

    weights: the hash of the base policy's here.
    Raises ConfigError: the run started from others, and its loss has a KL term.
    """
    record = read_record(run)
    before, origin = record.get("base_weights"), record.get("base_origin", "origin not recorded")
    if config.algorithm.kl.beta and "origin" not in record and None not in (before, weights) and before != weights:
        raise ConfigError(
            f"{run} started from a base policy with the weights {before} ({origin}), and here they are {weights}, so "
            "its KL term would have another reference; policy.base_from=FOLDER names the folder that has the run's"
        )


def state_digest(config: Config) -> str | None:
    """A digest of the training state that a fork starts from; None for any other run, or if it is not there."""
    state = _state_of(config)
    if state is None or not state.exists():
        return None
    files = sorted(state.iterdir()) if state.is_dir() else [state]
    return hashlib.sha256(" ".join(map(sum_of, files)).encode()).hexdigest()[:16]


def _state_of(config: Config) -> Path | None:
    fork = config.fork
    return None if fork is None or fork.steps is None else before_step(Path(fork.run), fork.steps[0])


def describe(changes: Mapping[str, list[Any]]) -> str:
    return "; ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in changes.items())
