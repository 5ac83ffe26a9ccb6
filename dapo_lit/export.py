"""Exports a checkpoint as a Hugging Face folder:

    python -m dapo_lit.export runs/single/dapo/seed_0 output=exported/dapo

The folder has a model card with the results, and the run's config. `hf upload me/dapo exported/dapo` puts it on the
Hugging Face hub.

transformers and vLLM load the folder as it is. Its generation config names every token that ends a response, because
responses run on to their limit if one is missing.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dapo_lit.cli.command import run_command
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.commands import ExportConfig
from dapo_lit.run_files import CONFIG, read_metrics


def export(config: ExportConfig, overrides: list[str]) -> None:
    from dapo_lit.evaluation.model_source import open_run_model, run_of
    from dapo_lit.policy.load import eos_ids, save_policy

    out, run = Path(config.output), run_of(Path(config.ckpt))
    if out.exists():
        raise ConfigError(f"output={out} exists already; move it away or choose another folder")
    evaluated, settings = open_run_model(Path(config.ckpt))
    model = evaluated.model
    model.generation_config.eos_token_id = list(eos_ids(model, evaluated.tokenizer))
    # Sampling as in training: the default elsewhere is greedy decoding, which an RL policy was not trained for.
    model.generation_config.do_sample = True
    model.generation_config.temperature = settings.rollout.temperature
    model.generation_config.top_p, model.generation_config.top_k = 1.0, 0
    notes = {"dapo_lit.json": {"checkpoint": evaluated.label, "digest": evaluated.digest}}
    card = model_card(out.name, settings, read_metrics(run).rows, config.license)
    files = {"README.md": card.encode(), "dapo_lit_config.yaml": (run / CONFIG).read_bytes()}
    save_policy(out, model, evaluated.tokenizer, notes, files)
    print(f"policy  {out} ({evaluated.label})")


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


def main() -> None:
    sys.exit(run_command(export, ExportConfig, "export", "ckpt"))


if __name__ == "__main__":
    main()
