"""When two runs are the same experiment: the kinds of config keys, the hash and the differences that count.

Works on config trees (nested mappings, as in a run's config.yaml), of older versions too: keys that such a tree lacks
are read as the shipped default, and keys that became constants since are left out.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from dapo_lit.config.run import Config
from dapo_lit.config.sections import HORIZON, SCIENCE, Kind, Section, section_of
from dapo_lit.config.shipped import default_run, default_study

PACKING = ("trainer.micro_batch_tokens", "trainer.shared_prompt", "trainer.devices", "trainer.num_nodes")
"""Execution keys that decide which tokens share a micro-batch."""

RETIRED_EXECUTION = {
    "trainer.cpu.auto", "rollout.torch.cuda_graphs", "rollout.stall_s", "rollout.vllm.gpu_memory_utilization",
    "rollout.vllm.server.shard_gb", "rollout.vllm.server.request_s",
    "logger.wandb.enabled",
    "logger.completions_every", "study.event", "study.declared",
    "regime.bases", "regime.screen", "regime.page", "rollout.mismatch_alarm", "trainer.checkpoint_in_background",
    "trainer.sharding.cpu_offload", "trainer.sharding.tensor_parallel", "trainer.sharding.replicas",
    "reflection.patterns", "rollout.vllm.eager", "trainer.peak_tflops", "evaluation.num_problems",
    "policy.random_init", "trainer.float32_matmul_precision", "trainer.grad_noise", "reward.workers",
}  # fmt: skip
"""Keys of earlier configs that no longer exist and changed nothing that a run learned, or follow from others."""
RETIRED_CONSTANTS: dict[str, Any] = {
    "rollout.top_p": 1.0, "rollout.top_k": 0, "evaluation.top_k": 0, "algorithm.dynamic_sampling.margin": 1.0,
    "algorithm.dynamic_sampling.window": 4.0, "algorithm.optimizer.max_bad_updates": 10,
    "algorithm.correction.cap": 2.0, "algorithm.correction.sequence_band": [0.0, 2.0],
    "algorithm.correction.token_band": [0.5, 5.0], "rollout.overlap": False,
    "algorithm.advantage.unbiased_std": True, "algorithm.dynamic_sampling.max_empty_steps": 3,
    "policy.freeze_frac": 0.0, "task.difficulty": None, "task.skip_bad_rows": 0.0, "task.dataset": None,
    "task.exclude_overlap_with": [],
    "budget.wall_s": None, "trainer.compile": "auto", "algorithm.critic.backbone": "separate",
    "logger.progress": "auto",
    "policy.lora.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}  # fmt: skip
"""Keys of earlier configs that are constants now, with the only value under which such a config means the same."""

Tree = Mapping[str, Any]


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """A nested config as dotted keys.

    >>> flatten({"algorithm": {"clip": {"low": 0.2}}})
    {'algorithm.clip.low': 0.2}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return flat


def put(tree: dict[str, Any], key: str, value: object) -> None:
    """Sets a dotted key of nested dictionaries."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree[section]
    tree[last] = value


def kinds(schema: type[Section] = Config, inherited: Kind = SCIENCE, prefix: str = "") -> dict[str, Kind]:
    """Every key of a schema with its kind, sections included."""
    found: dict[str, Kind] = {}
    for name, field in schema.model_fields.items():
        kind = next((tag for tag in field.metadata if isinstance(tag, Kind)), inherited)
        found[prefix + name] = kind
        if section := section_of(field.annotation):
            found |= kinds(section, kind, f"{prefix}{name}.")
    return found


@cache
def kind_of(key: str) -> Kind:
    """The kind of a dotted key; below a free mapping, that of the mapping; science where the schema has no such key."""
    known = kinds()
    while key not in known and "." in key:
        key = key.rpartition(".")[0]
    return known.get(key, SCIENCE)


def with_defaults(tree: Tree) -> dict[str, Any]:
    """A run's config without retired keys and with the keys that its version did not have."""

    def kept(part: Tree, prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in part.items():
            path = f"{prefix}{name}"
            if path in RETIRED_EXECUTION or (path in RETIRED_CONSTANTS and value == RETIRED_CONSTANTS[path]):
                continue
            below = kept(value, f"{path}.") if isinstance(value, Mapping) else value
            if below or not value:  # a section whose keys are all retired goes with them
                found[name] = below
        return found

    def fill(part: Tree, schema: type[Section], defaults: Tree) -> dict[str, Any]:
        filled = dict(part)
        for name, field in schema.model_fields.items():
            section = section_of(field.annotation)
            if name not in part and name in defaults:
                filled[name] = defaults[name]
            elif section and isinstance(part.get(name), Mapping):
                filled[name] = fill(part[name], section, defaults.get(name) or {})
        return filled

    heldout = tree.get("evaluation", {}).get("num_problems")  # which was a second limit on task.num_heldout
    own = kept(tree)
    if heldout is not None and "num_heldout" in own.get("task", {}):
        own["task"]["num_heldout"] = min(heldout, own["task"]["num_heldout"])
    return fill(own, Config, {**default_run(), "study": default_study()})


def identity(tree: Tree) -> dict[str, Any]:
    """The dotted keys that decide what a run learns and when it ends, with their values."""
    flat = flatten(with_defaults(tree))
    counted = {key for key in flat if kind_of(key) in (SCIENCE, HORIZON)}
    if flat.get("algorithm.token_level_denominator") == "microbatch":  # the gradient depends on the packing
        counted |= flat.keys() & set(PACKING)
    return {key: flat[key] for key in sorted(counted)}


def config_hash(tree: Tree) -> str:
    """16 hexadecimal digits of the run's identity."""
    return hashlib.sha256(json.dumps(identity(tree), sort_keys=True).encode()).hexdigest()[:16]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys whose values differ between two flat configs: {key: [before, after]}; None where a config lacks the key."""
    return {
        key: [before.get(key), after.get(key)]
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }


def same_experiment(record: Tree, tree: Tree, other_record: Tree, other_tree: Tree) -> bool:
    """Whether two runs, each given by its run.json and config.yaml, are the same experiment.

    A newer version may have added keys, which changes the hash: unless the hashes agree, the configs are compared.
    """
    hashes = record.get("config_hash"), other_record.get("config_hash")
    if hashes[0] == hashes[1] or not (tree and other_tree):
        return hashes[0] == hashes[1]
    return identity(tree) == identity(other_tree)
