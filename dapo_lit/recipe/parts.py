"""Builds the parts of a run from its config: problems, tokenizer, policy, engine, verifier."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.config import Config, ConfigError
from dapo_lit.config.evaluate import load_benchmark
from dapo_lit.config.sections import Policy, Task
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import DataError
from dapo_lit.data.templates import PromptTemplate, check_agreement
from dapo_lit.engines.protocol import RolloutEngine
from dapo_lit.engines.samples import token_ids
from dapo_lit.policy.base import BaseSpec, Stage, prepare_base
from dapo_lit.policy.load import load_model, load_tokenizer
from dapo_lit.policy.sharding import empty_model, load_shards
from dapo_lit.ranks import ALONE, Ranks
from dapo_lit.recipe.benchmarks import OpenBenchmark, open_benchmark
from dapo_lit.recipe.engine import build_engine, check_shared_engine
from dapo_lit.recipe.policy_check import check_dtype, check_policy
from dapo_lit.recipe.problem_sets import Problems, problems
from dapo_lit.recipe.reward_check import try_rewards
from dapo_lit.recipe.tokenizer_check import check_prompts, check_vocabulary
from dapo_lit.rewards.pool import Verifier
from dapo_lit.rollout.records import Prompt
from dapo_lit.rollout.reflection import ReflectionPatterns
from dapo_lit.tasks import chain_sum, four_sums, string_programs

CHARACTERS = {
    "chain_sum": chain_sum.CHARACTERS,
    "four_sums": four_sums.CHARACTERS,
    "string_programs": string_programs.CHARACTERS,
}
"""Vocabularies of the base policies."""


class Parts:
    """The parts of a run, each built on first use."""

    def __init__(self, config: Config, ranks: Ranks = ALONE) -> None:
        self.config = config
        self.ranks = ranks
        try:
            self.template = PromptTemplate.load(config.task.template)
            check_agreement(self.template, config.reward.extraction)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def check(self) -> None:
        """Finds a user's mistakes before anything is computed: data, reference answers, model, device.

        Raises:
            ConfigError, DataError, FileNotFoundError: with what to do.
        """
        check_dtype(self.config)
        if self.config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
            raise ConfigError("trainer.accelerator=gpu, but torch finds no GPU; set trainer.accelerator=cpu")
        everything = [*self.problems.train, *self.problems.heldout]
        self.check_answers(everything)
        check_vocabulary(self.tokenizer, self.policy, self.policy_folder)
        check_prompts(everything, self.template, self.tokenizer, self.policy)
        for warning in try_rewards(self.verifier, self.problems.train, self.config.reward.extraction):
            print(f"warning: {warning}", flush=True)
        rollout = self.config.rollout
        try:
            if self.ranks.size > 1 and rollout.engine == "vllm" and rollout.vllm.placement == "colocated":
                check_shared_engine(self.policy, rollout, self.longest_tokens, self.engine_dtype)
            else:
                self.engine()
        except ValueError as error:  # an architecture that the engine cannot sample from
            where = f"policy.path={self.policy_folder}: " if self.config.rollout.engine == "torch" else ""
            raise ConfigError(f"{where}{error}") from None

    @cached_property
    def problems(self) -> Problems:
        return problems(self.config)

    @cached_property
    def policy_folder(self) -> str | Path:
        """The folder of the policy's weights; a base policy that is not cached is pre-trained first."""
        return policy_folder(self.config.policy, self.config.task)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.policy_folder)

    @cached_property
    def policy(self) -> PreTrainedModel:
        dtype = getattr(torch, self.config.policy.dtype)
        if self.config.trainer.strategy == "fsdp":
            model = empty_model(self.local_policy_folder, dtype)
        else:
            model = load_model(self.policy_folder, dtype=dtype)
        check_policy(model, warns=self.ranks.rank == 0)
        limit = getattr(model.config, "max_position_embeddings", None)
        needed = self.config.task.max_prompt_tokens + self.config.task.max_response_tokens
        if limit is not None and needed > limit:
            raise ConfigError(
                f"task.max_prompt_tokens + task.max_response_tokens = {needed} is above the policy's context "
                f"of {limit} tokens"
            )
        return model

    @cached_property
    def local_policy_folder(self) -> Path:
        """The policy's folder on this machine; a hub id is downloaded."""
        folder = Path(self.policy_folder).expanduser()
        if folder.is_dir():
            return folder
        return Path(snapshot_download(str(self.policy_folder), allow_patterns=["*.safetensors", "*.json", "*.txt"]))

    def fill(self, policy: PreTrainedModel, device: torch.device) -> None:
        """Loads this rank's shards of the policy."""
        load_shards(policy, self.local_policy_folder, device)

    @property
    def engine_device(self) -> torch.device:
        """The device of training; the policy itself is still on the CPU when the engine is built."""
        uses_gpu = self.config.trainer.accelerator != "cpu" and torch.cuda.is_available()
        return torch.device("cuda", torch.cuda.current_device()) if uses_gpu else torch.device("cpu")

    @property
    def engine_dtype(self) -> torch.dtype:
        """The dtype that training computes in; shards may be stored in a wider one."""
        trainer = self.config.trainer
        narrow = trainer.sharding.dtype if trainer.strategy == "fsdp" else None
        found: torch.dtype = getattr(torch, narrow or self.config.policy.dtype)
        return found

    def engine(self) -> RolloutEngine:
        """The engine: vLLM is started once, a torch engine is built on every call."""
        return self._vllm if self.config.rollout.engine == "vllm" else self._build_engine()

    @cached_property
    def _vllm(self) -> RolloutEngine:
        return self._build_engine()

    def _build_engine(self) -> RolloutEngine:
        rollout = self.config.rollout
        longest = self.longest_tokens if rollout.engine == "vllm" else None
        return build_engine(
            self.policy, self.tokenizer, rollout, self.engine_device, longest, self.ranks, self.engine_dtype
        )

    @property
    def longest_tokens(self) -> int:
        """Largest number of tokens in a prompt and its response, in training and in every benchmark."""
        task = self.config.task
        return max(task.max_prompt_tokens + task.max_response_tokens, *(b.max_tokens for b in self.benchmarks), 0)

    @cached_property
    def verifier(self) -> Verifier:
        settings = self.config.reward.model_dump(exclude={"max_error_frac"})
        try:
            return Verifier(**settings | {"wrong_value": float(settings["wrong_value"])})
        except ValueError as error:
            raise ConfigError(f"reward: {error}") from None

    @cached_property
    def reflection(self) -> ReflectionPatterns:
        try:
            return ReflectionPatterns(self.config.reflection.patterns)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @cached_property
    def benchmarks(self) -> list[OpenBenchmark]:
        """The benchmarks of evaluation.benchmarks, opened; prints what was changed to fit the policy.

        Raises:
            ConfigError: two have the same name, or one has the name of the task's held-out problems.
        """
        config = self.config
        wanted = [load_benchmark(name) for name in config.evaluation.benchmarks]
        names = [config.task.label, *(b.name for b in wanted)]
        if len(set(names)) < len(names):
            raise ConfigError(f"evaluation.benchmarks: each needs a name of its own, got {', '.join(names)}")
        opened = [
            open_benchmark(
                benchmark,
                self.tokenizer,
                self.policy.config,
                seed=config.seed,
                deadline_s=config.reward.deadline_s,
                workers=config.reward.workers,
            )
            for benchmark in wanted
        ]
        for message in [m for b in opened for m in b.messages]:
            print(message, flush=True)
        return opened

    def check_answers(self, chosen: Sequence[Problem]) -> None:
        """Raises DataError for reference answers that the rule cannot use, as every response would be wrong."""
        faults = [f"{p.id}: {fault}" for p in chosen if (fault := self.verifier.check_answer(p.answer))]
        if faults:
            more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
            raise DataError(
                f"reward.rule={self.config.reward.rule} cannot use these answers: " + "; ".join(faults[:5]) + more
            )

    def prompts(self, chosen: Sequence[Problem]) -> tuple[list[Prompt], int]:
        """Encodes the prompts, drops those above max_prompt_tokens, and returns how many were dropped.

        Raises:
            DataError: none fits.
        """
        encoded = [Prompt(p, token_ids(self.template.encode(p.problem, self.tokenizer))) for p in chosen]
        kept = [p for p in encoded if len(p.ids) <= self.config.task.max_prompt_tokens]
        if chosen and not kept:
            raise DataError(
                f"all {len(chosen)} prompts exceed task.max_prompt_tokens={self.config.task.max_prompt_tokens} "
                f"(the shortest has {min(len(p.ids) for p in encoded)} tokens)"
            )
        return kept, len(encoded) - len(kept)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


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
    stages = () if policy.random_init or not task.base else tuple(_stage(s, task) for s in task.base["stages"])
    name = f"{task.label}-{policy.name}"
    return prepare_base(BaseSpec(name, policy.architecture, CHARACTERS[task.name], task.base_seed, stages))


def _stage(settings: dict[str, Any], task: Task) -> Stage:
    numbers = dict(settings)
    mixture = numbers.pop("mixture")
    if task.name == "string_programs":
        programs = string_programs.Programs(**task.options)
        return Stage(string_programs.Mixture(**mixture, programs=programs), **numbers)
    return Stage(chain_sum.Mixture(**mixture, sums=chain_sum.Sums(**task.options)), **numbers)
