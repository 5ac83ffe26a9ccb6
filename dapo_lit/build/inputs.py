"""Computes the digests of what a run reads (config/inputs.py says which there are and when they are compared)."""

import json
from collections.abc import Iterable, Iterator, Sequence

from dapo_lit.build.problem_sets import OpenBenchmark
from dapo_lit.config import Config
from dapo_lit.config.identity import flatten
from dapo_lit.data.problem import Problem
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.imports import module_file, named_code
from dapo_lit.policy.digests import digest_of
from dapo_lit.rewards.functions import BUILT_IN
from dapo_lit.rollout.records import Prompt

OWN = ("dapo_lit", "math_answers")
"""Packages whose source is in the `code_hash` of run.json."""


def problems_digest(problems: Iterable[Problem]) -> str:
    """Digest of ids, statements, answers and messages before them."""
    return digest_of(
        json.dumps([p.id, p.problem, p.answer, [[*m.items()] for m in p.before]]).encode() for p in problems
    )


def columns_digest(problems: Iterable[Problem]) -> str:
    """Digest of the other columns, which a reward function may read."""
    return digest_of(json.dumps(dict(p.meta), default=str).encode() for p in problems)


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """Digest of the token ids."""
    return digest_of(prompt.ids.tobytes() for prompt in prompts)


def template_digest(template: PromptTemplate) -> str:
    """Digest of the template's text, wherever its file is."""
    return digest_of([json.dumps([template.text, [[*m.items()] for m in template.messages]]).encode()])


def benchmark_digest(benchmark: OpenBenchmark) -> str:
    """Digest of problems, prompts, rule and sampling; where its file is does not matter."""
    settings, sampling = benchmark.settings, benchmark.sampling
    protocol = [settings.rule, settings.extraction, sampling.max_response_tokens, sampling.temperature, sampling.top_p]
    problems = problems_digest(prompt.problem for prompt in benchmark.prompts)
    pieces = [json.dumps(protocol), problems, prompts_digest(benchmark.prompts)]
    return digest_of(piece.encode() for piece in pieces)


def sources(config: Config) -> Iterator[tuple[str, str]]:
    """Each path of a function outside the package that the config names, with a digest of its module's file."""
    named = [path for key, value in flatten(config.model_dump()).items() for path in named_code(key, value)]
    for path in dict.fromkeys(path for path in named if path.partition(".")[0] not in OWN):
        if file := module_file(path):
            yield path, digest_of([file.read_bytes()])


def reads_columns(config: Config) -> bool:
    """True if something reads more of a problem than its statement and its answer."""
    return bool(reward_functions(config)) or config.turns.environment not in (None, "calculator", "second_try")


def reward_functions(config: Config) -> Sequence[str]:
    """The dotted paths of the reward functions that a config names."""
    reward = config.reward
    named = [reward.function, *(name for name in reward.weights or () if name not in BUILT_IN)]
    return [*dict.fromkeys(path for path in named if path)]
