"""Exports a checkpoint as a Hugging Face folder:

    python -m dapo_lit.export runs/single/dapo/seed_0 output=exported/dapo

The folder has a model card with the results, the run's curves and its config. push=owner/name uploads it to the
Hugging Face hub (`hf auth login` first).

transformers and vLLM load the folder as it is. Its generation config names every token that ends a response, because
responses run on to their limit if one is missing.
"""

import sys
from pathlib import Path

from dapo_lit.cli.command import run_command
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.commands import ExportConfig
from dapo_lit.errors import HubError
from dapo_lit.run_files import read_metrics
from dapo_lit.runs.model_card import model_card


def export(config: ExportConfig, overrides: list[str]) -> None:
    from dapo_lit.evaluation.model_source import open_run_model
    from dapo_lit.policy.load import eos_ids, save_policy

    out = Path(config.output)
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
    save_policy(out, model, evaluated.tokenizer, notes, described(config, settings))
    print(f"policy  {out} ({evaluated.label})")
    if config.push:
        print(f"pushed  {push(out, config.push)}")


def described(config: ExportConfig, settings: Config) -> dict[str, bytes]:
    """The model card, the run's curves and its config."""
    from dapo_lit.evaluation.model_source import run_of
    from dapo_lit.study.figures.curve_figures import curves_figure
    from dapo_lit.study.figures.drawing import encoded
    from dapo_lit.study.read.runs import Runs, read_run

    run = run_of(Path(config.ckpt))
    table = read_metrics(run).table.reset_index().astype(object)
    rows = [dict(zip(table.columns, values, strict=True)) for values in table.where(table.notna(), None).to_numpy()]
    card = model_card(config.push or Path(config.output).name, settings, rows, config.license)
    curves = (
        {"run.png": encoded(curves_figure(Runs((read_run(run),)), "rollout/accuracy").figure, "png")}
        if len(rows) > 1
        else {}
    )
    return {"README.md": card.encode(), "dapo_lit_config.yaml": (run / "config.yaml").read_bytes()} | curves


def push(folder: Path, repository: str) -> str:
    """Uploads the folder and returns the address of the repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload from dapo_lit.export")
    except (OSError, ValueError, HTTPError) as error:  # no login, no network, no permission, no valid name
        reason = str(error).strip().splitlines()[0]
        raise HubError(
            f"push={repository}: {reason}. The policy is in {folder}; `hf auth login` logs in, and "
            f"`hf upload {repository} {folder}` tries again"
        ) from None
    return str(address)


def main() -> None:
    sys.exit(run_command(export, ExportConfig, "export", "ckpt"))


if __name__ == "__main__":
    main()
