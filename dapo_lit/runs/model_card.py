"""The model card of an exported policy: origin, results and licences; dapo_lit_config.yaml has the settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dapo_lit.config import Config


def model_card(name: str, config: Config, rows: Sequence[Mapping[str, Any]], licence: str | None) -> str:
    """The card as Markdown, with the header that the hub reads; `rows` are those of metrics.jsonl."""
    origin = config.policy.path or f"a policy pre-trained for the task ({config.policy.name})"
    header = {"library_name": "transformers", "tags": ["dapo"], "base_model": config.policy.path, "license": licence}
    evaluated = [row for row in rows if any(key.startswith("eval/") for key in row)]
    results = [
        f"- `{key}`: {before} before, {after} after {evaluated[-1]['step']} rollout steps"
        for key, after in (evaluated[-1].items() if evaluated else ())
        if key.startswith("eval/") and None not in (before := evaluated[0].get(key), after)
    ]
    return "\n".join([
        "---", yaml.safe_dump({k: v for k, v in header.items() if v}, sort_keys=False) + "---", f"# {name}", "",
        f"{origin}, trained by DAPO (arXiv 2503.14476) with `dapo_lit` on `{config.task.path or config.task.name}`.",
        "One run: it does not show what another seed would give.", "", *results, "",
        f"Licence of the weights: {licence or 'not stated'}. They derive from the origin, whose licence applies too.",
    ]) + "\n"  # fmt: skip
