"""The checks of a training run before its first step."""

from dataclasses import replace
from functools import partial

import torch

from ablations.errors import DataError
from dapo_lit.build.components import RunComponents
from dapo_lit.build.models import uses_gpu
from dapo_lit.config import Config, ConfigError
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.wrap import decoder_layers
from dapo_lit.preflight.idle_settings import check_switches
from dapo_lit.preflight.machine import check_devices
from dapo_lit.preflight.policy import check_policy
from dapo_lit.preflight.problems import check_labels, check_leakage, check_references, try_rewards, unseen_columns
from dapo_lit.preflight.prompts import check_prompts, check_tokenizer
from dapo_lit.preflight.rules import check_rules
from dapo_lit.preflight.table import Finding, run_checks
from dapo_lit.preflight.weights import check_weights
from dapo_lit.rollout.episodes import encoder
from dapo_lit.switches.algorithm import check_algorithm


def check_run(parts: RunComponents, opened: bool = False) -> None:
    """Finds a user's mistakes before anything is computed, and prints what was checked; `preflight` skips most.

    opened: `check_weights` was called, which prints the first row.
    """
    check_algorithm(parts.config)
    if not parts.config.preflight:
        _check_lengths(parts.config)
        _check_device(parts)
        _check_engine(parts)
        return
    if not opened:
        check_weights(parts.config)
    run_checks(
        {
            "device": lambda: _check_device(parts),
            "problems": lambda: _check_problems(parts),
            **({} if parts.config.policy.path else {"base": lambda: _find_base(parts)}),
            "policy": lambda: check_policy_parts(parts),
            "tokenizer": lambda: check_tokenizer(parts.tokenizer, parts.policy, parts.policy_folder),
            "prompts": lambda: _check_prompts(parts),
            "evaluation": lambda: _check_evaluation(parts),
            "rewards": lambda: _try_rewards(parts),
            **({"turns": lambda: _try_environment(parts)} if parts.config.turns.environment else {}),
            "switches": lambda: _check_switches(parts.config),
            "engine": lambda: _check_engine(parts),
        },
        opened=True,
    )


def _find_base(parts: RunComponents) -> Finding:
    """Which base policy the run starts from; pre-trains it where there is none yet."""
    base, task = parts.base, parts.config.task
    assert base is not None
    return Finding(f"{task.label} {task.base_seed}, weights {base.weights}, {base.origin}")


def _check_switches(config: Config) -> Finding:
    _check_lengths(config)
    return check_switches(config)


def _check_lengths(config: Config) -> None:
    """Refuses a length cache of another task's scale: a laptop's 12 tokens on a limit of 20,480 punish nothing."""
    cache, limit = config.algorithm.overlong.cache_tokens, config.task.max_response_tokens
    if config.algorithm.techniques.soft_overlong_punishment and 100 * cache < limit:
        raise ConfigError(
            f"algorithm.overlong.cache_tokens={cache} is below a hundredth of task.max_response_tokens={limit}, so the "
            "soft punishment would hardly act; algorithm=dapo_paper takes the paper's share, a fifth"
        )


def _check_device(parts: RunComponents) -> Finding:
    trainer = parts.config.trainer
    if uses_gpu(trainer):
        check_devices(trainer, torch.cuda.device_count())
    size = trainer.devices * trainer.num_nodes
    words = f"{parts.engine_device.type}, {size} process{'es' if size > 1 else ''}, {parts.config.compute_dtype}"
    words += f", micro-batches of {trainer.tokens_at_once:,} tokens"
    return Finding(words, precision_warnings(parts.config, parts.engine_device))


def precision_warnings(config: Config, device: torch.device) -> tuple[str, ...]:
    """Says where products are less exact than the dtype that a run computes in."""
    if device.type == "cpu" or config.compute_dtype != "float32" or not config.trainer.tf32:
        return ()
    return (
        "float32 products are TF32, with factors of 10 bits: rows differ from full float32's in the third digit; "
        "trainer.tf32=false computes them in full",
    )


def _check_problems(parts: RunComponents) -> Finding:
    train, heldout, study = parts.problems.train, parts.problems.heldout, parts.config.study
    if study and study.metric.startswith("task/") and study.metric not in parts.problems.metrics:
        logged = ", ".join(parts.problems.metrics) or "no metric of its own"
        raise ConfigError(
            f"study.metric={study.metric} is not logged for task {parts.config.task.name}, which has {logged}; "
            "choose another, such as study.metric=rollout/accuracy"
        )
    benchmarks = parts.config.evaluation.benchmarks
    if study and study.metric.startswith("eval/") and not (heldout or benchmarks):
        raise ConfigError(
            f"study.metric={study.metric} is accuracy on held-out problems, and there are none; name a file of them as "
            "task.eval_path, or compare the arms on study.metric=rollout/accuracy"
        )
    parts.check_answers([*train, *heldout])
    unseen = unseen_columns(train) if parts.config.task.name == "file" else ()
    try:
        warnings = check_labels(train, None if parts.verifier.function else parts.verifier.equivalent)
    except DataError as error:
        # Problems that differ in what the prompt leaves out look like contradictions.
        if unseen:
            hint = "write them into the problem, if they are part of it"
            raise DataError(f"{unseen[0]} ({hint}); {error}") from None
        raise
    asked = parts.config.algorithm.num_prompts
    repeated = f", and a step has {asked} prompts, some several times" if len(train) < asked else ""
    words = f"{len(train):,} to train on{repeated}; the rule can use every reference answer"
    return Finding(words, warnings, unseen)


def check_policy_parts(parts: RunComponents) -> Finding:
    config, found = parts.config, check_policy(parts.policy)
    if config.trainer.activation_checkpointing != "none" or config.compute_dtype != config.policy.dtype:
        try:
            decoder_layers(parts.policy)
        except ValueError as error:
            raise ConfigError(f"policy.path={parts.policy_folder}: {error}") from None
    return found


def _check_prompts(parts: RunComponents) -> Finding:
    (train, num_long), (heldout, _) = parts.train_prompts, parts.heldout_prompts
    read_by = parts.template, parts.tokenizer, parts.policy
    found = check_prompts(train, *read_by)
    others = {"held-out problems": check_prompts(heldout, *read_by, source="task.eval_path")}
    for b in parts.benchmarks:
        where, template = f"evaluation.benchmarks: {b.settings.name}", PromptTemplate.load(b.settings.template)
        others[where] = check_prompts(b.prompts, template, *read_by[1:], f"{where}, template", where)
    left = f"; {num_long:,} above task.max_prompt_tokens are left out" if num_long else ""
    # What is wrong with the tokenizer is the same line for all problems.
    warnings = dict.fromkeys(found.warnings)
    for where, other in others.items():
        warnings |= {f"{where}: {warning}": None for warning in other.warnings if warning not in found.warnings}
    return replace(found, words=found.words + left, warnings=tuple(warnings))


def _check_evaluation(parts: RunComponents) -> Finding:
    heldout = [prompt.problem for prompt in parts.heldout_prompts[0]]
    sets = {"task.eval_path": heldout} if parts.config.task.name == "file" else {}  # generated ones are apart by design
    sets |= {f"evaluation.benchmarks: {b.settings.name}": [p.problem for p in b.prompts] for b in parts.benchmarks}
    warnings = check_leakage(parts.problems.train, sets)
    for b in parts.benchmarks:
        found = check_references(
            b.verifier, [p.problem for p in b.prompts], f"evaluation.benchmarks: {b.settings.name}"
        )
        warnings += found.warnings
        if not parts.verifier.function:
            answers = [p.problem.answer for p in b.prompts]
            warnings += check_rules(parts.verifier.rule, parts.verifier.extraction, b.settings, answers)
    named = ", ".join(f"{len(b.prompts):,} of {b.settings.name}" for b in parts.benchmarks)
    return Finding(f"{len(heldout):,} held-out problems{', ' if named else ''}{named}", warnings)


def _try_rewards(parts: RunComponents) -> Finding:
    settings = parts.config.reward
    key = "task.path" if parts.config.task.name == "file" else f"task.name={parts.config.task.name}"
    ids_of = partial(parts.tokenizer.encode, add_special_tokens=False)
    found = try_rewards(parts.verifier, parts.problems.train, settings.extraction, settings.max_error_frac, key, ids_of)
    heldout = check_references(parts.verifier, parts.problems.heldout, "task.eval_path")
    return replace(found, warnings=(*found.warnings, *heldout.warnings))


def _try_environment(parts: RunComponents) -> Finding:
    from dapo_lit.build.environment import build_environment
    from dapo_lit.preflight.environment import try_environment

    turns, reward, problems = parts.config.turns, parts.config.reward, parts.problems.train
    environment = build_environment(turns, reward, problems, turns.workers or parts.num_workers)
    try:
        encode = encoder(parts.tokenizer, turns.template)
        return try_environment(environment, turns, problems, reward.extraction, encode, reward.max_error_frac)
    finally:
        environment.close()


def _check_engine(parts: RunComponents) -> Finding:
    _ = parts.benchmarks  # what cannot be read ends the run here, without the checks above too
    rollout = parts.config.rollout
    try:
        if parts.ranks.size == 1 or rollout.engine == "torch" or rollout.vllm.placement == "server":
            parts.engine()  # vLLM in several processes starts in all of them together
    except ValueError as error:  # an architecture that the engine cannot sample from
        where = f"policy.path={parts.policy_folder}: " if parts.config.rollout.engine == "torch" else ""
        raise ConfigError(f"{where}{error}") from None
    return Finding(
        f"{rollout.engine}, {str(parts.engine_dtype).removeprefix('torch.')}",
        engine_warnings(rollout.engine, parts.engine_dtype, parts.engine_device),
    )


def engine_warnings(engine: str, dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    """What has not been run, or has failed, of an engine in this dtype on this device."""
    if engine == "torch" or dtype != torch.float32 or device.type == "cpu":
        return ()
    return (
        "rollout.vllm.dtype=float32 is untested on a GPU: the only start, of vLLM 0.26 in the trainer's process on an "
        "H100, ended in `illegal memory access`; bfloat16 works there",
    )
