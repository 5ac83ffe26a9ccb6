"""Runs that train adapters: what the engine samples from, what is saved, resumed and exported."""

import pytest
import torch
from commands import export_to
from small_runs import Run, rows, untimed

from ablations.errors import DamagedError
from dapo_lit.build.base_policy import policy_folder
from dapo_lit.config import Config
from dapo_lit.policy.load import load_model
from dapo_lit.policy.lora import is_adapter
from dapo_lit.policy.sharding import full_tensors
from dapo_lit.runs.checkpoint_weights import policy_weights
from dapo_lit.runs.run_folder import run_path
from dapo_lit.train import train

LORA = ("policy.lora={rank: 4, alpha: 32}", "algorithm.optimizer.lr=0.01")


def base_of(config: Config) -> dict[str, torch.Tensor]:
    return load_model(policy_folder(config.policy, config.task)).state_dict()


def test_adapters_alone_are_trained_and_the_engine_samples_from_them(compose):
    config = compose(*LORA, "budget.steps=3")
    run = Run(config)
    run.fit()
    written, base = rows(run.folder.path)[1:], base_of(config)
    named = dict(run.module.policy.named_parameters())
    for name, parameter in named.items():
        if is_adapter(name):
            assert parameter.requires_grad
        else:
            assert not parameter.requires_grad
            assert torch.equal(parameter, base[name.replace(".base_layer", "")]), name
    moved = [p for name, p in named.items() if ".lora_B." in name]
    assert all(p.abs().max() > 1e-3 for p in moved)
    # The engine's log-probs of its own samples are those of the policy with its adapters.
    measured = [row["mismatch/prob_diff_max"] for row in written if row["mismatch/prob_diff_max"] is not None]
    assert max(measured) < 1e-5
    assert measured[-1] > 0
    sent = dict(full_tensors(run.module.policy))
    assert sent.keys() == base.keys()
    assert max((sent[name] - base[name]).abs().max() for name in sent) > 1e-2


def test_a_checkpoint_holds_adapters_alone_and_a_resumed_run_goes_on_bit_for_bit(compose):
    whole = compose(*LORA, "study_name=whole", "budget.steps=4")
    train(whole, [])
    train(compose(*LORA, "study_name=halves", "budget.steps=2"), [])
    halves = compose(*LORA, "study_name=halves", "budget.steps=4", "resume=true")
    train(halves, [])
    saved = [policy_weights(run_path(c, "dapo") / "checkpoints" / "step_000004.ckpt") for c in (whole, halves)]
    assert saved[0]
    assert all(map(is_adapter, saved[0]))
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
    # Step 2 was the last of the first half, and evaluated.
    assert untimed(run_path(whole, "dapo"))[-2:] == untimed(run_path(halves, "dapo"))[-2:]


def test_adapters_of_another_base_are_refused_on_resuming_and_on_export(compose, tmp_path, monkeypatch):
    config = compose(*LORA, "budget.steps=1")
    train(config, [])
    for reader in ("dapo_lit.lit.module", "dapo_lit.evaluation.model_source"):
        monkeypatch.setattr(f"{reader}.fingerprint", lambda model: 7)
    with pytest.raises(DamagedError, match=r"adapters (for|belong to) another base"):
        train(compose(*LORA, "budget.steps=2", "resume=true"), [])
    with pytest.raises(DamagedError, match=r"adapters (for|belong to) another base"):
        export_to(tmp_path / "out", run_path(config, "dapo"))
