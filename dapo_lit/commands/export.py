"""Exports a checkpoint as a Hugging Face folder, started by dapo_lit/export.py."""

from pathlib import Path

from dapo_lit.config import ConfigError
from dapo_lit.config.export import ExportConfig
from dapo_lit.evaluation.model_source import open_run_model
from dapo_lit.policy.load import eos_ids
from dapo_lit.policy.save import save_policy


def export(config: ExportConfig, overrides: list[str]) -> None:
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
    save_policy(out, model, evaluated.tokenizer, notes)
    print(f"policy  {out} ({evaluated.label})")
