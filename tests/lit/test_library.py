"""The package as a library: the script of docs/library.md, with a Lightning trainer of one's own."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import export_to
from lightning import Trainer
from transformers import AutoModelForCausalLM

from dapo_lit import DAPOModule, RolloutDataModule
from dapo_lit.config import ConfigError
from dapo_lit.evaluation.model_source import open_model

METRIC = "eval/four_sums/avg@2"


@pytest.fixture(scope="module")
def names(cache, tmp_path_factory) -> dict[str, Any]:
    """What the script leaves behind after four steps, and its folder."""
    page = Path(__file__).parents[2] / "docs" / "library.md"
    (script,) = re.findall(r'```python title="own_trainer.py"\n(.*?)```', page.read_text(), re.S)
    found = {"folder": tmp_path_factory.mktemp("library")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found["folder"])
        exec(compile(script.replace("budget.steps=20", "budget.steps=4"), "own_trainer.py", "exec"), found)
    return found


def test_metrics_reach_loggers_and_the_trainer(names):
    assert 0 <= float(names["trainer"].callback_metrics[METRIC]) <= 1
    (file,) = (names["folder"] / "logs").rglob("metrics.csv")
    header = file.read_text().splitlines()[0].split(",")
    assert {"rollout/accuracy", "loss/policy", "policy/entropy", "perf/tokens_per_s", METRIC} <= set(header)


def test_a_kept_checkpoint_is_evaluated_and_exported_with_the_config_that_it_holds(names, tmp_path, monkeypatch):
    monkeypatch.chdir(names["folder"])
    kept = Path(names["kept"].best_model_path).relative_to(names["folder"])
    export_to(tmp_path / "exported", kept)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    for name, tensor in DAPOModule.load_from_checkpoint(kept).policy.state_dict().items():
        assert torch.equal(exported.state_dict()[name], tensor), name
    assert "None are known" in (tmp_path / "exported" / "README.md").read_text()
    assert yaml.safe_load((tmp_path / "exported" / "dapo_lit_config.yaml").read_text())["budget"]["steps"] == 4
    assert open_model(str(kept), names["config"].policy, "cpu").label == f"kept-{kept.stem}"
    with pytest.raises(ConfigError, match="no checkpoint there"):
        export_to(tmp_path / "none", kept.with_name("none.ckpt"))

    poisoned = torch.load(kept, weights_only=False)
    poisoned["hyper_parameters"]["config"]["reward"]["function"] = "os.system"
    poisoned["hyper_parameters"]["config"]["budget"]["steps"] = "${oc.env:HOME}"
    torch.save(poisoned, tmp_path / "poisoned.ckpt")
    with pytest.raises(ConfigError, match=r"poisoned.ckpt: its config has '\$"):
        export_to(tmp_path / "none", tmp_path / "poisoned.ckpt")


def test_a_kept_checkpoint_is_loaded_with_its_config_and_validated(names, tmp_path):
    kept = names["kept"]
    loaded = DAPOModule.load_from_checkpoint(names["folder"] / kept.best_model_path)
    assert loaded.config == names["config"]
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    data = RolloutDataModule(loaded.config)
    (found,) = trainer.validate(loaded, data, verbose=False)
    assert found[METRIC] == pytest.approx(float(kept.best_model_score))  # same weights, same random numbers
    with pytest.raises(RuntimeError, match="make another one"):
        trainer.validate(loaded, data, verbose=False)
