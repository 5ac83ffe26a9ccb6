"""What a run read, by content: digests in its run.json and its checkpoints, and which of them differ.

A config names files by their paths, and a file that was edited under its path makes another experiment of the same
config. Each digest is one named part:

    problems        the training problems: id, statement, reference answer, messages before it
    heldout         the same of the held-out problems
    columns         the other columns of both, where a function of one's own scores
    prompts         the token ids of both, as the policy gets them
    template        the text of the prompt template
    tokenizer       the tokenizer's files, and the tokens that end a response
    weights         of a policy from elsewhere (policy.path); run.json has those of a base policy as base_weights
    state           the training state that a fork continues
    benchmark NAME  the problems, prompts and protocol of a benchmark
    source PATH     the file of a reward function, a loss or an environment

Runs of earlier versions recorded few of them or none: what one side lacks is unknown, and never different. Nor does a
part differ where the configs already do in a setting that decides it, such as task.path: that is for the comparison of
settings (Configs.identity in trainer.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ablations.trainer import Tree, configs, flatten

Inputs = Mapping[str, str]
"""Name of a part -> its digest."""

_PROBLEMS = ("task.name", "task.path", "task.columns", "task.deduplicate", "task.num_problems", "task.options")
_HELDOUT = ("task.name", "task.eval_path", "task.columns", "task.num_heldout", "task.options")
_POLICY = ("policy.", "task.name", "task.options", "task.base")
DECIDED_BY: dict[str, tuple[str, ...]] = {
    "problems": _PROBLEMS,
    "heldout": _HELDOUT,
    "columns": (*_PROBLEMS, *_HELDOUT),
    "prompts": (*_PROBLEMS, *_HELDOUT, "task.template", "task.max_prompt_tokens", "policy.path"),
    "template": ("task.template",),
    "tokenizer": _POLICY,
    "weights": _POLICY,
    "state": ("fork.",),
    "benchmark": ("evaluation.benchmarks", "policy.path"),
    "source": (),
}
"""Beginnings of the config keys that decide a part: it is compared only between runs that agree in them."""
FOLLOWS = {"prompts": {"problems", "heldout", "template", "tokenizer"}, "benchmark": {"tokenizer"}}
"""Parts that differ already because another one does, which is then named in their place."""
WORDS = {
    "problems": ("the training problems", "task.path"),
    "heldout": ("the held-out problems", "task.eval_path"),
    "columns": ("the other columns of the problems", "task.path"),
    "prompts": ("the prompts' tokens (another date or version of transformers)", "task.template"),
    "template": ("the prompt template", "task.template"),
    "tokenizer": ("the tokenizer", "policy.path"),
    "weights": ("the starting weights", "policy.path"),
    "state": ("the training state", "fork.run"),
    "benchmark": ("the benchmark", None),
    "source": ("the source of", None),
}


def recorded(record: Tree) -> dict[str, str]:
    """The digests in a run.json; of a run of an earlier version, those that it recorded under other names."""
    found = {str(name): str(digest) for name, digest in (record.get("inputs") or {}).items()}
    state = (record.get("origin") or {}).get("state")
    return {**({"state": str(state)} if state else {}), **found}


def differing(one: Inputs, other: Inputs) -> list[str]:
    """The parts that both have and that differ; causes only."""
    return causes(name for name in one if name in other and one[name] != other[name])


def causes(differing: Iterable[str]) -> list[str]:
    """Parts that differ, in the order of the list above, without those that differ because another one does."""
    names = list(differing)
    kinds = {kind_of_part(name) for name in names}
    kept = [name for name in names if not FOLLOWS.get(kind_of_part(name), set()) & kinds]
    order = list(DECIDED_BY)
    return sorted(kept, key=lambda name: (order.index(kind_of_part(name)), name))


def unexplained(record: Tree, tree: Tree, other_record: Tree, other_tree: Tree) -> list[str]:
    """The parts in which two runs differ, each given by its run.json and config.yaml, though their settings agree."""
    names = differing(recorded(record), recorded(other_record))
    if not names or not (tree and other_tree):  # logs of other trainers have no config
        return names
    one, two = configs().identity(tree), configs().identity(other_tree)
    return [name for name in names if deciding(name, one) == deciding(name, two)]


def deciding(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, as `identity` gives them, that decide a part."""
    return {key: value for key, value in settings.items() if key.startswith(DECIDED_BY[kind_of_part(name)])}


def kind_of_part(name: str) -> str:
    """`benchmark` for `benchmark aime_2024`; `problems` for an unknown part of a later version."""
    kind = name.partition(" ")[0]
    return kind if kind in DECIDED_BY else "problems"


PLURAL = ("problems", "heldout", "columns", "prompts", "weights")


def are_several(names: Iterable[str]) -> bool:
    """True if the words for these parts take a verb in the plural."""
    listed = list(names)
    return len(listed) > 1 or listed[0] in PLURAL


def in_words(names: Iterable[str], tree: Tree) -> str:
    """Names parts with the setting that points to them.

    >>> in_words(["problems", "source mine.score"], {"task": {"path": "own.jsonl"}})
    'the training problems (task.path=own.jsonl) and the source of mine.score'
    """
    flat, named = flatten(configs().complete(tree) if "algorithm" in tree else tree), []
    for name in names:
        words, key = WORDS[kind_of_part(name)]
        _, _, rest = name.partition(" ")
        value = flat.get(key) if key else None
        named.append(words + (f" {rest}" if rest else "") + (f" ({key}={value})" if value is not None else ""))
    return " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))
