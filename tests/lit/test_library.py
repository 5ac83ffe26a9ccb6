"""The package as a library: the script of docs/library.md, with a Lightning trainer of one's own."""

import re
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer

from dapo_lit import DAPOModule, RolloutDataModule

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
