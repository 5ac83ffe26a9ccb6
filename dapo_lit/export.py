"""Exports a checkpoint as a Hugging Face folder:

    python -m dapo_lit.export runs/single/dapo/seed_0 output=exported/dapo

The folder has a model card with the results, and the run's config. `hf upload me/dapo exported/dapo` puts it on the
Hugging Face hub.

transformers and vLLM load the folder as it is. Its generation config names every token that ends a response, because
responses run on to their limit if one is missing.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ablations.errors import UserError
from ablations.files.layout import CONFIG, EVALUATIONS
from ablations.files.metrics_file import read_metrics
from ablations.files.record import config_text
from ablations.files.tables import read_table
from ablations.texts import read_bytes
from dapo_lit.cli.command import run_command
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.commands import ExportConfig
from dapo_lit.data.templates import PromptTemplate


def export(config: ExportConfig, overrides: list[str]) -> None:
    from transformers import GenerationConfig

    from dapo_lit.evaluation.model_source import open_run_model, run_of
    from dapo_lit.policy.load import eos_ids, save_policy

    out, run = Path(config.output), run_of(Path(config.ckpt))
    if out.exists():
        raise ConfigError(f"output={out} exists already; move it away or choose another folder")
    evaluated, settings = open_run_model(Path(config.ckpt))
    model = evaluated.model
    # Sampling as in training: the default elsewhere is greedy decoding, which an RL policy was not trained for. A new
    # one, because whatever else the origin's has, such as a repetition penalty, was not in force in training.
    model.generation_config = GenerationConfig(
        bos_token_id=evaluated.tokenizer.bos_token_id,
        pad_token_id=evaluated.tokenizer.pad_token_id,
        eos_token_id=list(eos_ids(model, evaluated.tokenizer)),
        do_sample=True,
        temperature=settings.rollout.temperature,
        top_p=1.0,
        top_k=0,
    )
    notes = {"dapo_lit.json": {"checkpoint": evaluated.label, "digest": evaluated.digest}}
    card = model_card(out.name, settings, run, config.license)
    written = read_bytes(run / CONFIG) if run else config_text(settings.model_dump(mode="json")).encode()
    files = {"README.md": card.encode(), "dapo_lit_config.yaml": written}
    save_policy(out, model, evaluated.tokenizer, notes, files)
    print(f"policy  {out} ({evaluated.label})")


def model_card(name: str, config: Config, run: Path | None, licence: str | None) -> str:
    """The card as Markdown, with the header that the hub reads."""
    origin = config.policy.path or f"a policy pre-trained for the task ({config.policy.name})"
    data = config.task.path or f"{config.task.name}, a generated task"
    header = {"library_name": "transformers", "tags": ["dapo"], "base_model": config.policy.path, "license": licence}
    return "\n".join([
        "---", yaml.safe_dump({k: v for k, v in header.items() if v}, sort_keys=False) + "---", f"# {name}", "",
        f"{origin}, trained by DAPO (arXiv 2503.14476) with `dapo_lit` on {data}.", "",
        "## Results", "", *_results(config, run),
        "One run: it does not show what another seed would give.", "",
        "## Use", "", "```python", *_use(name, config), "```", "",
        "The settings of the training are in `dapo_lit_config.yaml`.", "",
        "## Licence", "",
        f"Of the weights: {licence or 'not stated'}. They derive from the origin, whose licence applies too.",
    ]) + "\n"  # fmt: skip


def _results(config: Config, run: Path | None) -> list[str]:
    """A table of what the run evaluated, before and after; intervals over problems where there are several."""
    if run is None:
        return ["None are known: the checkpoint was not in the folder of a run.", ""]
    rows = [row for row in read_metrics(run).rows if any(key.startswith("eval/") for key in row)]
    if not rows:
        return ["Nothing was evaluated.", ""]
    before, after = rows[0], rows[-1]
    lines = [f"| | before | after {after['step']} rollout steps |", "|---|---|---|"]
    for key in after:
        if key.startswith("eval/") and "@" in key.rpartition("/")[2] and before.get(key) is not None:
            benchmark, _, measure = key.removeprefix("eval/").rpartition("/")
            cells = [_with_interval(run, benchmark, row, key) for row in (before, after)]
            lines.append(f"| {benchmark}, {measure} | {cells[0]} | {cells[1]} |")
    held = " on the held-out problems" if config.task.eval_path or config.task.name != "file" else ""
    method = "avg@k with its 95 % t-interval over problems, one always right and one always wrong problem added"
    return [*lines, "", f"Accuracy{held} in %; {method}.", ""]


def _with_interval(run: Path, benchmark: str, row: Mapping[str, Any], key: str) -> str:
    """`68.4 [62.0, 74.8]`, the interval that `evaluate` gives; none where samples were not kept, or for another measure
    than a mean."""
    from dapo_lit.evaluate import share_interval

    text, file = f"{100 * row[key]:.1f}", run / EVALUATIONS / benchmark / f"step_{row['step']:06d}.parquet"
    if "/avg@" not in key or not file.is_file():
        return text
    table = read_table(file, ["problem_id", "correct", "timed_out", "failed"])
    judged = table[~(table["timed_out"] | table["failed"])]
    found = share_interval(judged.groupby("problem_id")["correct"].mean().to_numpy(dtype=float))
    return f"{text} [{100 * (found.low or 0):.1f}, {100 * (found.high or 0):.1f}]"


def _use(name: str, config: Config) -> list[str]:
    """Lines of Python that load the folder and sample as in training."""
    try:
        is_chat = bool(PromptTemplate.load(config.task.template).messages)
    except UserError:  # a file of one's own that is no longer there
        is_chat = False
    ask = (
        "inputs = tokenizer.apply_chat_template("
        '[{"role": "user", "content": "..."}], add_generation_prompt=True, return_dict=True, return_tensors="pt")'
        if is_chat
        else 'inputs = tokenizer("...", return_tensors="pt")'
    )
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer", "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = AutoModelForCausalLM.from_pretrained("{name}")',
        f"{ask}  # template {Path(config.task.template).stem}",
        f"output = model.generate(**inputs, max_new_tokens={config.task.max_response_tokens})  # samples",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
    ]  # fmt: skip


def main() -> None:
    sys.exit(run_command(export, ExportConfig, "export", "ckpt"))


if __name__ == "__main__":
    main()
