"""Base policies that the framework makes itself: a small model, pre-trained on demonstrations, cached as an HF folder.

A base is a pure function of its spec: the architecture and the seed fix the initial weights, each stage adds a fixed
number of supervised updates. (A pure function up to the rounding of the machine: another CPU or torch version may
differ in the last bits.) Stages are cached one by one, so bases that share their first stages share that work too.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch
from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from dapo_lit.policy.load import load_model
from dapo_lit.policy.pretrain import Row, train_supervised
from dapo_lit.policy.save import save_policy
from dapo_lit.policy.tokenizer import character_tokenizer

_BUILD = 1
"""Raise it when the same spec makes another model than before, so that cached bases are built anew."""


class Demonstration(Protocol):
    @property
    def prompt(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def ends(self) -> bool:
        """Whether the EOS token follows the response."""


class Demonstrations(Protocol):
    """A seeded source of demonstrations, such as dapo_lit.tasks.chain_sum.Mixture."""

    def recipe(self) -> Mapping[str, object]:
        """All that decides what `stream` yields, beside the seed; JSON values."""

    def stream(self, seed: int) -> Iterator[Demonstration]: ...


@dataclass(frozen=True)
class Stage:
    """One run of supervised training."""

    demonstrations: Demonstrations
    updates: int
    learning_rate: float
    batch_size: int
    """updates x batch_size demonstrations are drawn, each seen once."""

    def recipe(self) -> dict[str, object]:
        numbers = {name: value for name, value in vars(self).items() if name != "demonstrations"}
        return {**numbers, "demonstrations": dict(self.demonstrations.recipe())}


@dataclass(frozen=True)
class BaseSpec:
    """What a base policy is made from. Without stages it is a random initialisation."""

    name: str
    """What the progress bar calls it; bases of other names that are made alike share a folder."""
    architecture: Mapping[str, object]
    """Arguments of an HF config, `model_type` among them; vocabulary size and token ids are filled in."""
    characters: str
    """The vocabulary, beside pad and EOS."""
    seed: int = 0
    stages: tuple[Stage, ...] = ()

    def recipe(self) -> dict[str, object]:
        return {
            "build": _BUILD,
            "architecture": dict(self.architecture),
            "characters": self.characters,
            "seed": self.seed,
            "stages": [stage.recipe() for stage in self.stages],
        }

    def folder_name(self) -> str:
        digest = hashlib.sha256(json.dumps(self.recipe(), sort_keys=True).encode()).hexdigest()
        return f"base-{digest[:16]}"


def default_cache() -> Path:
    """DAPO_LIT_CACHE, or ~/.cache/dapo_lit."""
    return Path(os.environ.get("DAPO_LIT_CACHE") or Path.home() / ".cache" / "dapo_lit")


def prepare_base(spec: BaseSpec, cache: Path | None = None, *, progress: bool = True) -> Path:
    """The HF folder of the base (config, safetensors, tokenizer, generation config), built if the cache lacks it.

    A folder under its final name is complete: it is written beside and renamed. A second process that wants the same
    base waits for the first; one that is killed leaves nothing that a later build takes for a base.
    """
    cache = cache or default_cache()
    folder = cache / spec.folder_name()
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{spec.folder_name()}.lock"):
        if folder.is_dir():
            return folder
        tokenizer = character_tokenizer(spec.characters)
        if spec.stages:
            before = prepare_base(replace(spec, stages=spec.stages[:-1]), cache, progress=progress)
            model = load_model(before)
            _train_stage(model, tokenizer, spec, progress)
        else:
            model = random_model(spec.architecture, tokenizer, spec.seed)
        for left in cache.glob(f".building-{folder.name}-*"):  # By a process that was killed: the lock is ours.
            shutil.rmtree(left, ignore_errors=True)
        save_policy(folder, model, tokenizer, {"base.json": spec.recipe()})
    return folder


def random_model(architecture: Mapping[str, object], tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A model with random weights, fixed by the seed; float32. Torch's global generator is left as it was.

    Weights are drawn with standard deviation 1/sqrt(hidden_size) unless the architecture gives `initializer_range`:
    the 0.02 of transformers suits models some thousand wide and makes tiny ones learn slowly.
    """
    values = dict(architecture)
    values.setdefault("initializer_range", float(values["hidden_size"]) ** -0.5)  # type: ignore[arg-type]
    config = AutoConfig.for_model(
        values.pop("model_type"),
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **values,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _train_stage(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, spec: BaseSpec, progress: bool) -> None:
    stage = spec.stages[-1]
    seed = 1000 * spec.seed + len(spec.stages)
    drawn = list(islice(stage.demonstrations.stream(seed), stage.updates * stage.batch_size))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # As fast as more for a tiny model, and sums are rounded the same way everywhere.
    try:
        train_supervised(
            model,
            _rows(tokenizer, drawn),
            updates=stage.updates,
            batch_size=stage.batch_size,
            learning_rate=stage.learning_rate,
            seed=seed,
            progress=f"base {spec.name}, stage {len(spec.stages)}" if progress else None,
        )
    finally:
        torch.set_num_threads(threads)


def _rows(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> list[Row]:
    prompts = tokenizer([d.prompt for d in demonstrations], return_attention_mask=False)["input_ids"]
    responses = tokenizer([d.response for d in demonstrations], return_attention_mask=False)["input_ids"]
    end = [tokenizer.eos_token_id]
    return [(p, r + end if d.ends else r) for p, r, d in zip(prompts, responses, demonstrations, strict=True)]
