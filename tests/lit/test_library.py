"""The package as a library: a Lightning trainer of one's own, as docs/library.md shows it."""

import re
from pathlib import Path

import pytest
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from dapo_lit import DAPOModule, RolloutDataModule, compose

SMALL = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "evaluation.samples=2")
METRIC = "eval/four_sums/avg@2"


class Seen(Callback):
    """Keeps what a callback of one's own can read after each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rows.append({key: float(value) for key, value in trainer.callback_metrics.items()})


@pytest.fixture(scope="module")
def fitted(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    config = compose(*SMALL, "budget.steps=4", "algorithm.optimizer.lr=0.01")
    seen = Seen()
    kept = ModelCheckpoint(folder / "kept", monitor=METRIC, mode="max", save_top_k=1)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger(folder, name="", version="log"),
        log_every_n_steps=1,
        val_check_interval=2,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[seen, kept, EarlyStopping("rollout/accuracy", mode="max", patience=2, stopping_threshold=1.01)],
    )
    module = DAPOModule(config)
    trainer.fit(module, RolloutDataModule(config))
    return trainer, module, seen, kept, folder


def test_metrics_reach_callbacks_loggers_and_the_trainer(fitted):
    trainer, module, seen, _, folder = fitted
    assert [row["step"] for row in seen.rows] == [1, 2, 3, 4][: len(seen.rows)]
    assert len(seen.rows) == module.counters.step >= 2
    for key in ("rollout/accuracy", "loss/policy", "policy/entropy", "sampling/rounds", "perf/tokens_per_s"):
        assert key in seen.rows[-1]
    assert 0 <= float(trainer.callback_metrics[METRIC]) <= 1
    header = (folder / "log" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"rollout/accuracy", "loss/policy", METRIC} <= set(header)


def test_a_kept_checkpoint_is_loaded_with_its_config_and_validated(fitted, tmp_path):
    _, module, _, kept, _ = fitted
    assert Path(kept.best_model_path).is_file()
    loaded = DAPOModule.load_from_checkpoint(kept.best_model_path)
    assert loaded.config == module.config
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    (found,) = trainer.validate(loaded, RolloutDataModule(loaded.config), verbose=False)
    assert found[METRIC] == pytest.approx(float(kept.best_model_score))  # same weights, same random numbers


def test_a_data_module_is_refused_a_second_time(fitted):
    trainer, module, *_ = fitted
    with pytest.raises(RuntimeError, match="make another one"):
        trainer.validate(module, trainer.datamodule, verbose=False)


def test_the_script_of_the_page_runs(cache, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "library.md"
    (script,) = re.findall(r'```python title="own_trainer.py"\n(.*?)```', page.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(script.replace("budget.steps=20", "budget.steps=2"), "own_trainer.py", "exec"), {})
    assert METRIC in capsys.readouterr().out
