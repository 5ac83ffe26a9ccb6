"""The model card of an exported policy: what it was trained from, on what and how, how it did, under which licences."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dapo_lit.config import Config

KEYS = (
    ("algorithm", "family"), ("algorithm", "num_prompts"), ("algorithm", "samples_per_prompt"),
    ("algorithm", "minibatch_prompts"), ("algorithm", "optimizer", "lr"), ("task", "max_response_tokens"),
    ("reward", "rule"), ("reward", "extraction"), ("reward", "function"), ("rollout", "temperature"), ("seed",),
)  # fmt: skip
"""Settings that the card lists; dapo_lit_config.yaml has all."""


def model_card(
    name: str, config: Config, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], licence: str | None
) -> str:
    """The card as Markdown, with the header that the hub reads.

    Args:
        name: of the repository, or of the folder.
        record: run.json.
        rows: of metrics.jsonl, the first and the last of which are shown.
        licence: identifier of the licence (apache-2.0); None: the card says that none was stated.
    """
    header: dict[str, Any] = {"library_name": "transformers", "tags": ["dapo", "reinforcement-learning", "dapo_lit"]}
    if licence:
        header["license"] = licence
    if config.policy.path:
        header["base_model"] = config.policy.path
    last = rows[-1] if rows else {"step": 0, "gradient_step": 0, "tokens_generated": 0}
    pre_trained = f"a policy pre-trained for the task (`{config.policy.name}`)"
    origin = f"`{config.policy.path}`" if config.policy.path else pre_trained
    problems = f"`{config.task.path}`" if config.task.path else f"the generated task `{config.task.name}`"
    lines = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {name}",
        f"Trained from {origin} on {problems} by DAPO ([arXiv 2503.14476](https://arxiv.org/abs/2503.14476)) with "
        f"`dapo_lit`: arm `{record.get('arm', '')}`, {last['step']:.0f} rollout steps, "
        f"{last['gradient_step']:.0f} updates, {last['tokens_generated']:,.0f} sampled tokens.",
        "## Results",
        _results(rows),
        *(["![entropy, length, accuracy and groups by rollout step](run.png)"] if len(rows) > 1 else []),
        "One run: it does not show what another seed would give.",
        "## Settings",
        _settings(config),
        "## Licences",
        f"- Weights: {licence or 'no licence was stated at the export'}; they derive from {origin}, whose licence "
        "applies to them too.\n"
        f"- Problems: {problems}; see their licence. None of them is in this repository.",
    ]
    return "\n\n".join(lines) + "\n"


def _results(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of the evaluations before and after training; one line if there are not two."""
    evaluated = [row for row in rows if any(key.startswith("eval/") for key in row)]
    if len(evaluated) < 2:
        return "The run has no evaluation before and after training."
    before, after = evaluated[0], evaluated[-1]
    keys = [k for k in after if k.startswith("eval/") and None not in (after[k], before.get(k))]
    lines = [f"| | step {before['step']} | step {after['step']} |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{key}` | {before[key]:.3f} | {after[key]:.3f} |" for key in keys)])


def _settings(config: Config) -> str:
    tree = config.model_dump(mode="json")
    lines = ["| key | value |", "|---|---|"]
    for path in KEYS:
        value: Any = tree
        for part in path:
            value = value[part]
        lines.append(f"| `{'.'.join(path)}` | {value} |")
    on = [technique for technique, is_on in tree["algorithm"]["techniques"].items() if is_on]
    return "\n".join([*lines, f"| techniques that are on | {', '.join(on) or 'none'} |"])
