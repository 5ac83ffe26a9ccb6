"""What a checkpoint holds comes back: each of its fields is changed in the file, and a run resumed from it has the
changed value. A field that is saved and not read back fails, and so does one that this cannot change.

That a resumed run then goes on bit for bit like one that never stopped: tests/lit/test_exceptions.py.
"""

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from small_runs import Run

from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.fit import build_trainer
from dapo_lit.seeds import random_state, restore_random_state

SETTINGS = (
    "budget.steps=4", "trainer.checkpoint_every=3", "evaluation.every=0", "preflight=false", "rollout.steps_ahead=1",
    "algorithm.dynamic_sampling.carry_over=all", "algorithm.dynamic_sampling.on_exhausted=replay",
    "algorithm.dynamic_sampling.max_rounds=3", "algorithm.dynamic_sampling.max_staleness=4",
    "policy.lora={rank: 2, alpha: 8}", "algorithm.optimizer.lr=0.01",
)  # fmt: skip
"""A run with as much in its state as one run can have."""
LIGHTNINGS = {"epoch", "global_step", "pytorch-lightning_version", "loops", "hparams_name", "hyper_parameters"}
KEPT = {
    "base_fingerprint": "another is refused: tests/lit/test_lora_runs.py",
    "num_problems": "another is refused: tests/data/test_order.py", "seed": "the same",
    "inputs": "others are refused: tests/test_inputs.py",
    "reward_settings": "compared where a fork continues: tests/test_fork.py",
    "problem": "found by its id: tests/rollout/test_carry_over.py", "problem_id": "the same",
    "ids": "of an environment, which this run has none of: tests/lit/test_turns.py", "places": "the same",
    "position": "of an open group's problem, the same; that of the order is changed",
    "num_samples": "decides whether an open group has ended",
    "params": "numbers of the optimizer's parameters",
    "random": "generators take states, not numbers: that of other seeds, below",
    **dict.fromkeys(("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused"), "AdamW's kinds"),
    "decoupled_weight_decay": "AdamW's kind",
}  # fmt: skip
"""Fields that stay as they are, each with its reason."""


class CaughtError(Exception):
    """The state is read."""


class Saver(Callback):
    """Saves what a resumed run has before its first step, and ends it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_start(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.file, weights_only=False)
        raise CaughtError


class Change:
    """Changes every leaf of a tree that is not kept."""

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def __call__(self, value: Any, name: str = "", of: Any = None) -> Any:
        if name in KEPT and not (name == "position" and isinstance(of, dict)):
            self.kept.add(name)
            return value
        if isinstance(value, dict):
            return {key: self(each, str(key), value) for key, each in value.items()}
        if is_dataclass(value):
            copy = replace(value)  # type: ignore[type-var]
            for f in fields(value):
                object.__setattr__(copy, f.name, self(getattr(value, f.name), f.name, value))
            return copy
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self(each, key) for key, each in zip(value._fields, value, strict=True)))
        if isinstance(value, (list, tuple)):
            return type(value)(self(each, name) for each in value)
        match value:
            case bool():
                return not value
            case int() | torch.Tensor() | np.ndarray():
                return value + 1
            case float():
                return value + 0.25
            case str():
                return value + "x"
            case None:
                return 0.5 if name in ("advantage", "row") else None
        raise TypeError(f"{name}: {type(value).__name__}")


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{name}.{key}")
    elif is_dataclass(value):
        for f in fields(value):
            yield from leaves(getattr(value, f.name), f"{name}.{f.name}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from leaves(each, f"{name}.{index}")
    else:
        yield name, value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return type(one) is type(other) and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and (one == other or one != one)


def own(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without what Lightning keeps for itself."""
    return {key: value for key, value in state.items() if key not in LIGHTNINGS}


def test_every_field_of_a_state_is_read_back(compose, tmp_path):
    run = Run(compose(*SETTINGS))
    run.fit()
    (file,) = (run.folder.path / "checkpoints").glob("step_000003.ckpt")
    whole = torch.load(file, weights_only=False)
    before, change = own(whole), Change()
    state = change(before)
    assert change.kept | {"num_samples", "position"} == KEPT.keys()  # no reason outlives its field
    mine = random_state()
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    state["dapo_lit"]["random"] = [random_state()]
    collector = state["RolloutDataModule"]["collector"]
    assert collector["earlier"]
    assert state["RolloutDataModule"]["ahead"]
    torch.save(whole | state, tmp_path / "changed.ckpt")

    again = Run(compose(*SETTINGS, "study_name=again"))
    (recorder,) = (callback for callback in again.trainer.callbacks if isinstance(callback, Recorder))
    trainer = build_trainer(again.module.config, [Saver(tmp_path / "read.ckpt"), recorder])
    with pytest.raises(CaughtError):
        trainer.fit(again.module, datamodule=again.datamodule, ckpt_path=tmp_path / "changed.ckpt", weights_only=False)
    restore_random_state(mine)
    read = own(torch.load(tmp_path / "read.ckpt", weights_only=False))

    # A fork or a replay may shape rewards in another way: those of whole groups that wait are made anew.
    ended = [group.group for group in collector["carried"] if group.finished] + collector["earlier"]
    assert ended
    for group in ended:
        again.datamodule.collector.setup.shape([*group.completions, *group.missing])
    found, wanted, old = (dict(leaves(tree)) for tree in (read, state, before))
    assert found.keys() == wanted.keys() == old.keys()
    assert [name for name in wanted if not same(found[name], wanted[name])] == []
    unchanged = {name.split(".")[-1] for name in wanted if wanted[name] is not None and same(wanted[name], old[name])}
    assert unchanged - KEPT.keys() <= {"id", "problem", "answer", "meta", "length_penalty", "reward_shaped"} | {
        part
        for name in wanted
        for part in name.split(".")
        if "random" in name or "params" in name or ".inputs." in name
    }
