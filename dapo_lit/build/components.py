"""Builds the parts of a run from its config: problems, tokenizer, policy, engine, verifier."""

import os
import re
from collections.abc import Callable, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ablations.errors import DataError
from dapo_lit.build.base_policy import BasePolicy, find_base
from dapo_lit.build.engine import build_engine
from dapo_lit.build.inputs import (
    benchmark_digest,
    columns_digest,
    problems_digest,
    prompts_digest,
    reads_columns,
    sources,
    template_digest,
)
from dapo_lit.build.models import uses_gpu
from dapo_lit.build.problem_sets import OpenBenchmark, Problems, open_benchmark, problems
from dapo_lit.build.verifier import build_verifier
from dapo_lit.chat_template import today
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.commands import load_benchmark
from dapo_lit.data.problem import Problem
from dapo_lit.data.templates import agreed_template
from dapo_lit.engines.protocol import RolloutEngine, token_ids
from dapo_lit.log import log
from dapo_lit.policy.digests import local_folder, model_of, tokenizer_of
from dapo_lit.policy.load import eos_ids, fetched, load_model, load_tokenizer, response_text
from dapo_lit.policy.sharding import empty_model, load_shards
from dapo_lit.ranks import SINGLE_PROCESS, Ranks
from dapo_lit.rewards.references import other_reading
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.metrics import MARK, WORDS
from dapo_lit.rollout.records import Prompt
from dapo_lit.tasks.generated import characters


class RunComponents:
    """The parts of a run, each built on first use.

    day: the date in prompts whose chat template writes one; None: today.
    """

    def __init__(self, config: Config, ranks: Ranks = SINGLE_PROCESS, day: date | None = None) -> None:
        self.config = config
        self.ranks = ranks
        self.day = day or today()
        self.template = agreed_template(config.task.template, config.reward.extraction)

    @cached_property
    def problems(self) -> Problems:
        return problems(self.config)

    @property
    def policy_folder(self) -> str | Path:
        """The folder or hub id of the policy's weights."""
        return self.config.policy.path or self._base.folder

    @property
    def base(self) -> BasePolicy | None:
        """The task's base policy, which is pre-trained if it is nowhere yet; None for a policy from elsewhere."""
        return None if self.config.policy.path else self._base

    @cached_property
    def _base(self) -> BasePolicy:
        return find_base(self.config.policy, self.config.task)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Digests of what the run reads (ablations/inputs.py); a part that is not on this machine is left out."""
        config, found = self.config, self.problems
        own = local_folder(config.policy.path) if config.policy.path else None
        digests = {
            "problems": problems_digest(found.train),
            "heldout": problems_digest(found.heldout),
            "columns": columns_digest([*found.train, *found.heldout]) if reads_columns(config) else None,
            "prompts": prompts_digest([*self.train_prompts[0], *self.heldout_prompts[0]]),
            "template": template_digest(self.template),
            # A tokenizer that was made here is a function of the task; its files differ between versions of libraries.
            "tokenizer": own and tokenizer_of(own, eos_ids(self.policy, self.tokenizer)),
            "weights": own and model_of(own),  # of a base policy made here: base_weights
            **{f"benchmark {b.settings.name}": benchmark_digest(b) for b in self.benchmarks},
            **{f"source {path}": digest for path, digest in sources(config)},
        }
        return {name: digest for name, digest in digests.items() if digest}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.policy_folder, own=self.base is not None)

    @cached_property
    def policy(self) -> PreTrainedModel:
        dtype = getattr(torch, self.config.policy.dtype)
        if self.config.trainer.strategy == "fsdp":
            model = empty_model(self.local_policy_folder, dtype, own=self.base is not None)
        else:
            model = load_model(self.policy_folder, dtype=dtype, own=self.base is not None)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        key = "task" if self._response_limit == self.config.task.max_response_tokens else "evaluation"
        needed = self.config.task.max_prompt_tokens + self._response_limit + self.config.turns.most_observed
        if limit is not None and needed > limit:
            named = f"task.max_prompt_tokens={self.config.task.max_prompt_tokens}"
            if self.config.turns.most_observed:
                named += f", turns.max_observation_tokens={self.config.turns.most_observed}"
            raise ConfigError(
                f"{named} and {key}.max_response_tokens="
                f"{self._response_limit} together are above the policy's context of {limit} tokens; lower one of them"
            )
        return model

    @cached_property
    def local_policy_folder(self) -> Path:
        """The policy's folder on this machine; a hub id is downloaded."""
        return fetched(self.policy_folder, weights=True, own=self.base is not None)

    def fill(self, policy: PreTrainedModel, device: torch.device) -> None:
        """Loads this rank's shards of the policy."""
        load_shards(policy, self.local_policy_folder, device)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint, at the least: the weights and AdamW's two moments of each; 0 of adapters only."""
        if self.config.policy.lora is not None:
            return 0
        return 3 * sum(weight.numel() * weight.element_size() for weight in self.policy.parameters())

    @property
    def engine_device(self) -> torch.device:
        """The device of training; the policy itself is still on the CPU when the engine is built."""
        uses_gpu = self.config.trainer.accelerator != "cpu" and torch.cuda.is_available()
        return torch.device("cuda", torch.cuda.current_device()) if uses_gpu else torch.device("cpu")

    @property
    def engine_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.config.engine_dtype(uses_gpu(self.config.trainer)))
        return found

    def engine(
        self, ranks: Ranks = SINGLE_PROCESS, stop_requested: Callable[[], bool] = lambda: False
    ) -> RolloutEngine:
        """The engine: vLLM is started once, a torch engine is built on every call. With an environment around it where
        the config has one.

        ranks: those that may share the engine. stop_requested: whether the run was asked to stop.
        """
        engine = self._vllm if self.config.rollout.engine == "vllm" else self._build_engine()
        if self.config.turns.environment is None:
            return engine
        from dapo_lit.build.environment import with_environment

        return with_environment(
            engine, self.config, self.problems, self.tokenizer, self.decode, self.num_workers, ranks, stop_requested
        )

    @cached_property
    def _vllm(self) -> RolloutEngine:
        return self._build_engine()

    def _build_engine(self) -> RolloutEngine:
        rollout = self.config.rollout
        longest = self.longest_tokens if rollout.engine == "vllm" else None
        ranks = self.ranks.of_sampling
        # Other ranks wait for the one that gives the order: it gives up before they do, and leaves out the server.
        order_s = 0.9 * 60 * self.config.trainer.timeout_min
        return build_engine(
            self.policy, self.tokenizer, rollout, self.engine_device, longest, ranks, self.engine_dtype, order_s
        )

    @property
    def longest_tokens(self) -> int:
        """Largest number of tokens in a prompt and its response, in training and in every benchmark."""
        own = self.config.task.max_prompt_tokens + self._response_limit + self.config.turns.most_observed
        return max(own, *(b.max_tokens for b in self.benchmarks), 0)

    @property
    def _response_limit(self) -> int:
        """The larger of the response limits in training and on the held-out problems."""
        return max(self.config.task.max_response_tokens, self.config.evaluation.max_response_tokens or 0)

    @property
    def num_workers(self) -> int:
        """Worker processes of each verifier: half of the machine's cores, divided among its ranks; 2 to 16."""
        return max(2, min(16, (os.cpu_count() or 1) // (2 * self.config.trainer.devices)))

    @cached_property
    def verifier(self) -> Verifier:
        return build_verifier(self.config.reward, self.num_workers)

    @property
    def reflection(self) -> re.Pattern[str]:
        """Pattern of reflection in a response."""
        return MARK if characters(self.config.task.name) else WORDS

    @cached_property
    def benchmarks(self) -> list[OpenBenchmark]:
        """The benchmarks of evaluation.benchmarks, opened; prints what was changed to fit the policy."""
        config = self.config
        wanted = [load_benchmark(name) for name in config.evaluation.benchmarks]
        names = [config.task.label, *(b.name for b in wanted)]
        if len(set(names)) < len(names):
            raise ConfigError(f"evaluation.benchmarks: each needs a name of its own, got {', '.join(names)}")
        opened = [
            open_benchmark(
                benchmark,
                self.tokenizer,
                self.policy,
                seed=config.seed,
                deadline_s=config.reward.deadline_s,
                workers=self.num_workers,
                day=self.day,
            )
            for benchmark in wanted
        ]
        for message in [m for b in opened for m in b.messages]:
            log.info(message)
        return opened

    def check_answers(self, chosen: Sequence[Problem]) -> None:
        """Raises DataError for reference answers that the rule cannot use, as every response would be wrong."""
        found = ((f"{p.id}: {fault}", p.answer) for p in chosen if (fault := self.verifier.check_answer(p.answer)))
        faults = dict(found)  # the training file may be the held-out one
        if faults:
            more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
            message = f"reward.rule={self.config.reward.rule} cannot use these answers: "
            message += "; ".join([*faults][:5]) + more
            if reading := other_reading([*faults.values()], self.verifier.rule, self.verifier.extraction):
                name, right, tried = reading
                message += f". As the reference, {name} would be right in {right:,} of {tried:,}; use only that"
            raise DataError(message)

    @cached_property
    def train_prompts(self) -> tuple[list[Prompt], int]:
        return self.prompts(self.problems.train)

    @cached_property
    def heldout_prompts(self) -> tuple[list[Prompt], int]:
        return self.prompts(self.problems.heldout)

    def prompts(self, chosen: Sequence[Problem]) -> tuple[list[Prompt], int]:
        """Encodes the prompts, drops those above max_prompt_tokens, and returns how many were dropped."""
        ids = self.template.encode_all([*map(self.template.asked, chosen)], self.tokenizer, self.day)
        encoded = [Prompt(problem, token_ids(own)) for problem, own in zip(chosen, ids, strict=True)]
        kept = [p for p in encoded if len(p.ids) <= self.config.task.max_prompt_tokens]
        if chosen and not kept:
            raise DataError(
                f"all {len(chosen)} prompts exceed task.max_prompt_tokens={self.config.task.max_prompt_tokens} "
                f"(the shortest has {min(len(p.ids) for p in encoded)} tokens)"
            )
        return kept, len(encoded) - len(kept)

    def decode(self, ids: Sequence[int]) -> str:
        return response_text(ids, self._ends, self.tokenizer)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return eos_ids(self.policy, self.tokenizer)
