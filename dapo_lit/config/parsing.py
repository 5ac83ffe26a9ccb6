"""Turns plain containers into a checked config, or says what is wrong with them, with the key that was meant."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from dapo_lit.config.identity import kinds
from dapo_lit.config.run import Config
from dapo_lit.config.sections import ConfigError, Section, section_of
from dapo_lit.errors import nearest, suggestion

# Keys of other trainers, and the key here; docs/coming_from.md explains them.
TRL = {
    "num_generations": "algorithm.samples_per_prompt", "per_device_train_batch_size": "algorithm.minibatch_prompts",
    "gradient_accumulation_steps": "algorithm.minibatch_prompts", "steps_per_generation": "algorithm.num_prompts",
    "generation_batch_size": "algorithm.num_prompts", "num_iterations": "algorithm.epochs",
    "max_prompt_length": "task.max_prompt_tokens", "max_completion_length": "task.max_response_tokens",
    "max_steps": "budget.steps", "num_train_epochs": "budget.steps", "learning_rate": "algorithm.optimizer.lr",
    "lr": "algorithm.optimizer.lr", "warmup_steps": "algorithm.optimizer.warmup_steps",
    "lr_scheduler_type": "algorithm.optimizer.schedule", "max_grad_norm": "algorithm.optimizer.grad_clip",
    "adam_beta1": "algorithm.optimizer.betas", "adam_beta2": "algorithm.optimizer.betas", "beta": "algorithm.kl.beta",
    "epsilon": "algorithm.clip.low", "epsilon_low": "algorithm.clip.low", "epsilon_high": "algorithm.clip.high",
    "delta": "algorithm.clip.dual", "loss_type": "algorithm.techniques.token_level_loss",
    "importance_sampling_level": "algorithm.loss", "scale_rewards": "algorithm.advantage.scale_by_std",
    "mask_truncated_completions": "algorithm.techniques.overlong_filtering",
    "top_entropy_quantile": "algorithm.entropy.top_frac",
    "vllm_importance_sampling_correction": "algorithm.correction.kind",
    "vllm_importance_sampling_mode": "algorithm.correction.kind",
    "vllm_importance_sampling_cap": "algorithm.correction.cap",
    "get_soft_overlong_punishment": "algorithm.techniques.soft_overlong_punishment", "use_vllm": "rollout.engine",
    "max_completion_len": "task.max_response_tokens", "soft_punish_cache": "algorithm.overlong.cache_tokens",
    "vllm_mode": "rollout.vllm.placement", "vllm_gpu_memory_utilization": "rollout.vllm.kv_cache_gb",
    "reward_funcs": "reward.function", "reward_weights": "reward.weights",
    "log_completions": "logger.completions_every", "logging_steps": "logger.completions_every",
    "report_to": "logger.wandb.enabled", "run_name": "study_name", "output_dir": "runs_dir",
    "eval_steps": "evaluation.every", "save_steps": "trainer.checkpoint_every",
    "gradient_checkpointing": "trainer.activation_checkpointing", "bf16": "trainer.sharding.dtype",
    "model": "policy.path", "model_name_or_path": "policy.path", "train_dataset": "task.path", "dataset": "task.path",
    "dataset_name": "task.path", "eval_dataset": "task.eval_path", "batch_size": "algorithm.num_prompts",
    "group_size": "algorithm.samples_per_prompt", "max_new_tokens": "task.max_response_tokens",
    "max_tokens": "task.max_response_tokens", "epochs": "algorithm.epochs", "steps": "budget.steps",
}  # fmt: skip
VERL = {
    "train_batch_size": "algorithm.num_prompts", "gen_batch_size": "algorithm.dynamic_sampling.request_groups",
    "ppo_mini_batch_size": "algorithm.minibatch_prompts", "ppo_epochs": "algorithm.epochs",
    "rollout.n": "algorithm.samples_per_prompt", "max_response_length": "task.max_response_tokens",
    "clip_ratio": "algorithm.clip.low", "clip_ratio_low": "algorithm.clip.low",
    "clip_ratio_high": "algorithm.clip.high", "clip_ratio_c": "algorithm.clip.dual",
    "loss_agg_mode": "algorithm.techniques.token_level_loss",
    "filter_groups.enable": "algorithm.techniques.dynamic_sampling",
    "filter_groups.metric": "algorithm.dynamic_sampling.filter_on",
    "max_num_gen_batches": "algorithm.dynamic_sampling.max_rounds",
    "overlong_buffer.enable": "algorithm.techniques.soft_overlong_punishment",
    "overlong_buffer.len": "algorithm.overlong.cache_tokens",
    "overlong_buffer.penalty_factor": "algorithm.overlong.penalty_factor",
    "adv_estimator": "algorithm.advantage.estimator", "norm_adv_by_std_in_grpo": "algorithm.advantage.scale_by_std",
    "use_kl_loss": "algorithm.kl.where", "kl_loss_coef": "algorithm.kl.beta",
    "kl_loss_type": "algorithm.kl.estimator", "use_kl_in_reward": "algorithm.kl.where",
    "kl_coef": "algorithm.kl.beta", "entropy_coeff": "algorithm.entropy.bonus",
    "lr_warmup_steps": "algorithm.optimizer.warmup_steps", "ppo_max_token_len_per_gpu": "trainer.micro_batch_tokens",
    "log_prob_max_token_len_per_gpu": "trainer.micro_batch_tokens",
    "log_prob_use_dynamic_bsz": "trainer.micro_batch_tokens", "fsdp_size": "trainer.sharding.replicas",
    "rollout.name": "rollout.engine", "reward_manager": "reward.rule", "trainer.logger": "logger.wandb.enabled",
    "ppo_micro_batch_size_per_gpu": "trainer.micro_batch_tokens", "use_dynamic_bsz": "trainer.micro_batch_tokens",
    "use_remove_padding": "trainer.micro_batch_tokens",
    "enable_gradient_checkpointing": "trainer.activation_checkpointing",
    "param_offload": "trainer.sharding.cpu_offload", "optimizer_offload": "trainer.sharding.cpu_offload",
    "tensor_model_parallel_size": "rollout.vllm.tensor_parallel",
    "gpu_memory_utilization": "rollout.vllm.kv_cache_gb", "val_kwargs.n": "evaluation.samples",
    "val_kwargs.temperature": "evaluation.temperature", "val_kwargs.top_p": "evaluation.top_p",
    "custom_reward_function.path": "reward.function", "custom_reward_function.name": "reward.function",
    "test_freq": "evaluation.every", "save_freq": "trainer.checkpoint_every", "resume_mode": "resume",
    "default_local_dir": "runs_dir", "project_name": "logger.wandb.project", "experiment_name": "study_name",
    "prompt_key": "task.columns", "train_files": "task.path", "val_files": "task.eval_path",
    "model.path": "policy.path", "total_epochs": "budget.steps", "total_training_steps": "budget.steps",
    "nnodes": "trainer.num_nodes", "n_gpus_per_node": "trainer.devices",
}  # fmt: skip
WORDS = TRL | VERL


def key_for(word: str, known: Collection[str]) -> str | None:
    """The key here for a key of another trainer, which may have more sections before it; None if `known` has none.

    >>> key_for("actor_rollout_ref.rollout.n", ["algorithm.samples_per_prompt"])
    'algorithm.samples_per_prompt'
    """
    parts = word.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts)))
    return next((WORDS[suffix] for suffix in suffixes if WORDS.get(suffix) in known), None)


Schema = TypeVar("Schema", bound=Section)


def parse(tree: Mapping[str, Any]) -> Config:
    """Checks the composed config of a training run; see parse_as."""
    return parse_as(tree, Config)


def parse_as(tree: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Checks a composed config (plain containers, interpolations resolved) against a command's schema."""
    try:
        return schema.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(fault, schema) for fault in error.errors())) from None


def _fault(fault: Any, schema: type[Section]) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    match fault["type"]:
        case "extra_forbidden":
            return unknown_key(path, schema)
        case "missing":
            return f"{key}: missing; every key of its config group must have a value"
        case "value_error":
            return f"{key + ': ' if key else ''}{fault['ctx']['error']}"
        case _:
            return f"{key}: {fault['msg']} (got {fault['input']!r})"


def known_keys(path: Sequence[str], schema: type[Section] = Config) -> list[str] | None:
    """The keys that the schema has below `path`; None below a free mapping."""
    for part in path:
        field = schema.model_fields.get(part)
        section = section_of(field.annotation) if field else None
        if section is None:
            return None
        schema = section
    return list(schema.model_fields)


def unknown_key(path: Sequence[str], schema: type[Section] = Config, rest: Sequence[str] = ()) -> str:
    """One line that names an unknown key, and the key that was meant: that of another trainer's word, one of this name
    in another section, or the nearest.

    rest: what follows the unknown part of the key.
    """
    siblings, every = known_keys(path[:-1], schema) or [], kinds(schema)
    word, form = path[-1], ".".join([*path[:-1], "{}"])
    own = [key for key in every if key.rpartition(".")[2] == word]
    if meant := key_for(".".join([*path, *rest]), every):
        return f"{'.'.join([*path, *rest])}: unknown key; here it is {meant} (docs/coming_from.md)"
    if own:
        hint = f"did you mean {' or '.join(own)}?"
    elif len(path) == 1 and word.startswith("exp") and not nearest(word, siblings):  # a group, which is no key
        hint = "did you mean +experiment=NAME?"
    elif nearest(word, siblings):
        hint = suggestion(word, siblings, form)
    else:
        leaves = {key.rpartition(".")[2]: key for key in every}
        near = nearest(word, leaves)
        hint = f"did you mean {leaves[near]}?" if near else suggestion(word, siblings)
    return f"{'.'.join(path)}: unknown key; {hint}"
