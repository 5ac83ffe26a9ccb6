"""Each row of the table "Hook: may I?" of docs/library.md, tried on a run of two steps."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from ablations.errors import DamagedError
from dapo_lit import DAPOModule, RolloutDataModule
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, ConfigError, parse
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit.fit import continuing

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
SMALL = (
    "+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "evaluation.samples=2",
    "preflight=false", "logger.progress=none",
)  # fmt: skip
METRIC = "eval/four_sums/avg@2"


def composed(*overrides: str) -> Config:
    return parse(resolved(composed_tree([*SMALL, *overrides])))


def settings(steps: int = 2, *more: str) -> Config:
    return composed(f"budget.steps={steps}", *more)


def trained(folder: Path, module: DAPOModule | None = None, config: Config | None = None, **arguments: Any) -> Any:
    """The module after `fit` of a Trainer with these arguments."""
    module = module or DAPOModule(config or settings())
    given = {"accelerator": "cpu", "devices": 1, "logger": False, "num_sanity_val_steps": 0, "max_epochs": 1,
             "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
             "limit_val_batches": 0}  # fmt: skip
    arguments = {key: value for key, value in {**given, **arguments}.items() if value is not None}
    trainer = Trainer(default_root_dir=folder, **arguments)
    trainer.fit(module, RolloutDataModule(module.config))
    return module


def weights(module: DAPOModule) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.policy.parameters()])


def refused(folder: Path, part: str, module: DAPOModule | None = None, **arguments: Any) -> None:
    with pytest.raises(ConfigError, match=part):
        trained(folder, module, **arguments)


class Sgd(DAPOModule):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.policy.parameters(), lr=0.5)


def own_configure_optimizers(folder: Path) -> None:
    module = trained(folder, Sgd(settings()))
    assert module.optimizers().param_groups[0]["lr"] == 0.5  # no schedule of the config touches it
    assert module.counters.gradient_step == 4
    assert module.row["optim/lr"] == 0.5
    assert not torch.equal(weights(module), weights(DAPOModule(settings())))

    class Grouped(DAPOModule):
        def configure_optimizers(self) -> Any:
            every = list(self.policy.parameters())
            return torch.optim.AdamW([{"params": every[:3], "lr": 1e-2}, {"params": every[3:], "lr": 0.0}])

    grouped, before = trained(folder, Grouped(settings())), DAPOModule(settings())
    pairs = list(zip(grouped.policy.parameters(), before.policy.parameters(), strict=True))
    moved = [not torch.equal(after, start) for after, start in pairs]
    assert any(moved[:3])
    assert not any(moved[3:])


def several_optimizers_or_a_schedule(folder: Path) -> None:
    class Two(DAPOModule):
        def configure_optimizers(self) -> Any:
            every = list(self.policy.parameters())
            return [torch.optim.SGD(part, lr=0.1) for part in (every[:3], every[3:])]

    class Scheduled(DAPOModule):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    for module in (Two, Scheduled):
        refused(folder, "more than one optimizer, or a schedule", module(settings()))
    refused(folder, "critic=True", Sgd(composed("algorithm=ppo", "budget.steps=2")))


def own_training_step(folder: Path) -> None:
    class Watched(DAPOModule):
        seen = 0

        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            self.seen += len(batch.collected.accepted)

    module = trained(folder, Watched(settings()))
    assert module.seen > 0
    assert torch.equal(weights(module), weights(trained(folder)))


def max_epochs(folder: Path) -> None:
    assert trained(folder, max_epochs=None).counters.step == 2
    refused(folder, "max_epochs=3.*raise budget.steps", max_epochs=3)


def max_steps(folder: Path) -> None:
    # Updates, of which a step makes two; looked at between steps.
    assert trained(folder, config=settings(6), max_epochs=None, max_steps=4).counters.step == 2


def limit_train_batches(folder: Path) -> None:
    assert trained(folder, config=settings(6), limit_train_batches=3).counters.step == 3


def one_config_for_both(folder: Path) -> None:
    def trainer() -> Trainer:
        return Trainer(accelerator="cpu", devices=1, logger=False, max_epochs=1, default_root_dir=folder)

    other = settings(2, "algorithm.techniques.clip_higher=false", "trainer.micro_batch_tokens=128")
    with pytest.raises(
        ConfigError, match=r"different configs \(algorithm.techniques.clip_higher; .* is True and False"
    ):
        trainer().fit(DAPOModule(settings()), RolloutDataModule(other))
    with pytest.raises(ConfigError, match="RolloutDataModule"):
        trainer().fit(DAPOModule(settings()), train_dataloaders=[1])
    trainer().validate(DAPOModule(settings()), RolloutDataModule(settings(2, "evaluation.samples=4")), verbose=False)


def fast_dev_run(folder: Path) -> None:
    assert trained(folder, config=settings(6), fast_dev_run=True).counters.step == 1


def precision(folder: Path) -> None:
    for given in ("bf16-mixed", "16-true", "64-true"):
        refused(folder, "precision=.*trainer.sharding.dtype", precision=given)
    module = trained(folder, config=settings(2, "trainer.sharding.dtype=bfloat16"))
    assert module.counters.step == 2


def several_devices(folder: Path) -> None:
    for strategy in ("ddp_spawn", "ddp_fork"):
        with pytest.raises(Exception, match=r"trainer.strategy=single is one: set devices=1"):
            trained(folder, strategy=strategy, devices=2)


def gradient_clip_val(folder: Path) -> None:
    for argument in ({"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}):
        with pytest.raises(MisconfigurationException, match="manual optimization"):
            trained(folder, **argument)


def policy_before_fit(folder: Path) -> None:
    module = DAPOModule(settings())
    count = sum(p.numel() for p in module.policy.parameters())
    assert count > 50_000
    assert torch.equal(weights(trained(folder, module)), weights(trained(folder)))


def validate_and_test(folder: Path) -> None:
    config = settings(2, "evaluation.final_samples=4")
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=folder)
    (validated,) = trainer.validate(DAPOModule(config), RolloutDataModule(config), verbose=False)
    (tested,) = trainer.test(DAPOModule(config), RolloutDataModule(config), verbose=False)
    assert validated.keys() == tested.keys()
    assert 0 <= tested[METRIC] <= 1


def predict(folder: Path) -> None:
    config = settings()
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=folder)
    with pytest.raises(MisconfigurationException, match="forward"):
        trainer.predict(DAPOModule(config), RolloutDataModule(config))


def own_callbacks(folder: Path) -> None:
    calls: list[str] = []

    class Hooks(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            calls.append("batch")

        def on_before_optimizer_step(self, *_: Any) -> None:
            calls.append("update")

        def on_after_backward(self, *_: Any) -> None:
            calls.append("backward")

    trained(folder, callbacks=[Hooks()])
    assert calls.count("batch") == 2
    assert calls.count("update") == 4
    assert calls.count("backward") >= 4


def averaged_weights(folder: Path) -> None:
    """Validation samples from the averaged weights, and the step after it from the policy's own."""
    validates, given, rows = [False], [], []
    sync = TorchEngine.sync_weights

    def noted(self: TorchEngine, named_tensors: Any, version: int) -> None:
        tensors = {name: tensor.clone() for name, tensor in named_tensors}
        given.append((validates[0], tensors["model.norm.weight"]))
        sync(self, tensors.items(), version)

    class Averaging(EMAWeightAveraging):
        def on_validation_epoch_start(self, trainer: Trainer, module: Any) -> None:
            own = module.policy.model.norm.weight.clone()
            super().on_validation_epoch_start(trainer, module)
            validates[0] = True
            rows.append((own, module.policy.model.norm.weight.clone()))

        def on_validation_epoch_end(self, trainer: Trainer, module: Any) -> None:
            super().on_validation_epoch_end(trainer, module)
            validates[0] = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchEngine, "sync_weights", noted)
        arguments = {"val_check_interval": 2, "limit_val_batches": None}
        trained(folder, config=settings(3), callbacks=[Averaging(decay=0.9)], **arguments)
    (own, averaged), *_ = rows
    assert not torch.equal(own, averaged)
    order = [(during, torch.equal(tensor, own), torch.equal(tensor, averaged)) for during, tensor in given]
    assert order[-2:] == [(True, False, True), (False, True, False)]


def early_stopping(folder: Path) -> None:
    stop = EarlyStopping(METRIC, mode="max", stopping_threshold=-1.0)
    module = trained(folder, config=settings(6), callbacks=[stop], val_check_interval=2, limit_val_batches=1)
    assert module.counters.step == 2


def learning_rate_monitor(folder: Path) -> None:
    logger = CSVLogger(str(folder))
    trained(folder, callbacks=[LearningRateMonitor()], logger=logger, log_every_n_steps=1)
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0]
    assert "lr-AdamW" in header


def resume_by_ckpt_path(folder: Path) -> None:
    kept = ModelCheckpoint(folder / "kept", every_n_train_steps=1, save_top_k=-1)
    whole = trained(folder, config=settings(4), callbacks=[kept], enable_checkpointing=True)
    first = sorted((folder / "kept").glob("*.ckpt"), key=lambda file: int(re.search(r"step=(\d+)", file.name)[1]))[1]
    config = settings(4)
    module = DAPOModule(config)
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, num_sanity_val_steps=0, max_epochs=1,
                      enable_checkpointing=False, enable_progress_bar=False, limit_val_batches=0)  # fmt: skip
    for argument in ({}, {"weights_only": True}):
        with pytest.raises(DamagedError, match=rf"with dapo_lit.lit.fit.continuing\('{first}'\)"):
            trainer.fit(DAPOModule(config), RolloutDataModule(config), ckpt_path=first, **argument)
    with continuing(first):
        trainer.fit(module, RolloutDataModule(config), ckpt_path=first, weights_only=True)
    assert module.counters.step == 4
    assert torch.equal(weights(module), weights(whole))


def hooks_of_optimization(folder: Path) -> None:
    class Silent(DAPOModule):
        calls = 0

        def optimizer_step(self, *_: Any, **__: Any) -> None:
            self.calls += 1

        def lr_scheduler_step(self, *_: Any, **__: Any) -> None:
            self.calls += 1

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            self.calls += 1

    assert trained(folder, Silent(settings())).calls == 0


ROWS = {
    "`configure_optimizers` of your own": own_configure_optimizers,
    "several optimizers, a schedule in it": several_optimizers_or_a_schedule,
    "`training_step` with `super()`": own_training_step,
    "`optimizer_step`, `lr_scheduler_step`, `configure_gradient_clipping`": hooks_of_optimization,
    "`max_epochs`": max_epochs,
    "`max_steps`": max_steps,
    "`limit_train_batches`": limit_train_batches,
    "`fast_dev_run`": fast_dev_run,
    "another config in the data module, or `train_dataloaders=`": one_config_for_both,
    "`precision`": precision,
    "`devices=2`, `ddp_spawn`, `ddp_fork`": several_devices,
    "`gradient_clip_val`, `accumulate_grad_batches`": gradient_clip_val,
    "`module.policy` before `fit`": policy_before_fit,
    "`trainer.validate`, `trainer.test`": validate_and_test,
    "`trainer.predict`": predict,
    "callbacks": own_callbacks,
    "`EMAWeightAveraging`": averaged_weights,
    "`EarlyStopping`": early_stopping,
    "`LearningRateMonitor`": learning_rate_monitor,
    "`fit(ckpt_path=...)`": resume_by_ckpt_path,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "_", row).strip("_"))
def test_a_row_of_the_table_is_as_it_says(row: str, cache, tmp_path: Path) -> None:
    ROWS[row](tmp_path)


def test_the_table_has_the_rows_that_are_tested_and_no_other() -> None:
    table = PAGE.read_text().split("## Hook: may I?")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(ROWS)
