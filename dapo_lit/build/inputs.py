"""Computes the digests of what a run reads (ablations/inputs.py says which there are and when they are compared)."""

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ablations.texts import MB, read_bytes
from dapo_lit.build.problem_sets import OpenBenchmark
from dapo_lit.config import Config
from dapo_lit.config.identity import flatten
from dapo_lit.data.problem import Problem
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.imports import module_file, named_code
from dapo_lit.policy.digests import digest_of
from dapo_lit.rewards.functions import BUILT_IN
from dapo_lit.rollout.records import Prompt

OWN = ("dapo_lit", "ablations", "math_answers")
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
    """Each path of code outside the package that the config names, with a digest of its module's file and of those that
    it imports from its own folder."""
    named = [path for key, value in flatten(config.model_dump()).items() for path in named_code(key, value)]
    for path in dict.fromkeys(path for path in named if path.partition(".")[0] not in OWN):
        if file := module_file(path):
            yield path, digest_of(read_bytes(each, 16 * MB) for each in with_neighbours(file, path.count(".") - 1))


def with_neighbours(file: Path, depth: int) -> list[Path]:
    """A module's file, and the files that it imports from the folder of its top package, directly or not.

    depth: packages above the module. Nothing is imported: the files are parsed. Of an installed library only the file.
    """
    if "site-packages" in file.parts:
        return [file]
    root, found = file.resolve().parents[depth], dict[Path, None]()
    waiting = [file.resolve()]
    while waiting:
        if (one := waiting.pop()) in found:
            continue
        found[one] = None
        with suppress(SyntaxError):  # importing it says so
            names = [name for node in ast.walk(ast.parse(read_bytes(one, 16 * MB))) for name in _imported(node)]
            places = [folder / name.replace(".", "/") for name in names for folder in (root, one.parent)]
            waiting += [place.with_name(f"{place.name}.py") for place in places if place.name]
            waiting = [place.resolve() for place in waiting if place.is_file()]
    return [file, *sorted(place for place in found if place != file.resolve())]


def _imported(node: ast.AST) -> list[str]:
    """The modules that an import may mean: of `from a import b`, a and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = f"{node.module}." if node.module else ""
        return [*([node.module] if node.module else []), *(start + alias.name for alias in node.names)]
    return []


def reads_columns(config: Config) -> bool:
    """True if something reads more of a problem than its statement and its answer."""
    return bool(reward_functions(config)) or config.turns.environment not in (None, "calculator", "second_try")


def reward_functions(config: Config) -> Sequence[str]:
    """The dotted paths of the reward functions that a config names."""
    reward = config.reward
    named = [reward.function, *(name for name in reward.weights or () if name not in BUILT_IN)]
    return [*dict.fromkeys(path for path in named if path)]
