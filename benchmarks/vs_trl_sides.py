"""The two trainers of vs_trl.py, each in its own process, which makes one rollout step on request.

Both use the same config: policy, tokenizer, problems, prompts, verifier, sizes, learning rate and loss (DAPO's clipped
token-level loss on groups of one prompt, without dynamic sampling and length penalty, which TRL lacks).
"""

import logging
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from lightning import Callback

from dapo_lit.build.components import RunComponents
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import Config, parse
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.runs.loggers import Loggers
from dapo_lit.runs.run_folder import open_run
from dapo_lit.train import arm_of

PLAIN = (
    "algorithm.techniques.dynamic_sampling=false",
    "algorithm.techniques.soft_overlong_punishment=false",
    "algorithm.overlong.hard_punishment=false",
    "algorithm.optimizer.warmup_steps=0",
    "evaluation.every=0",
    "task.num_heldout=1",
    "evaluation.samples=1",
    "logger.progress=none",
    "logger.rollouts_every=0",
    "budget.steps=100000",
)


def quiet() -> None:
    """Silences Lightning's advice on loaders and modes."""
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Work:
    """The work of one side."""

    overrides: tuple[str, ...]
    threads: int
    options: dict[str, Any] = field(default_factory=dict)
    """Options of this side only: fields of GRPOConfig, or keys of our config."""


def config_of(work: Work, *more: str) -> Config:
    return parse(resolved(composed_tree([*PLAIN, *work.overrides, f"trainer.threads={work.threads}", *more])))


class Gate:
    """Reports each step and waits for the next request."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.began = self.began_wall = 0.0

    def wait(self) -> None:
        self.connection.recv()
        self.began, self.began_wall = time.perf_counter(), time.monotonic()

    def end(self, **found: Any) -> None:
        """Sends the seconds of the chosen clock (--clock) and of the wall's."""
        took = {"seconds": time.perf_counter() - self.began, "wall_seconds": time.monotonic() - self.began_wall}
        self.connection.send(took | found)
        self.wait()


class _Gates(Callback):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.gate.wait()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        groups = batch.collected.generated
        completions = [c for group in groups for c in group.completions]
        prompts = sum(len(group.prompt_ids) * len(group.completions) for group in groups)
        generated = sum(c.num_tokens for c in completions)
        times = {k: v for k, v in (batch.collected.metrics | module.step_metrics).items() if k.startswith("time/")}
        self.gate.end(
            generated=generated,
            tokens=prompts + generated,
            accuracy=sum(c.correct for c in completions) / len(completions),
            times=times | {"time/sync_s": batch.sync_s},
        )


def ours(connection: Connection, work: Work) -> None:
    quiet()
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as runs:
        config = config_of(work, f"runs_dir={runs}", *(f"{key}={value}" for key, value in work.options.items()))
        parts = RunComponents(config)
        folder = open_run(config, [], arm_of(config))
        recorder = Recorder(config, folder, Loggers(config, folder))
        trainer = build_trainer(config, [recorder, _Gates(Gate(connection))])
        module = DAPOModule(config, lambda: parts.policy)
        module.logs = False  # as in a run of the command, where no callback reads Lightning's copy of the metrics
        trainer.fit(module, datamodule=RolloutDataModule(config, parts))


def trl(connection: Connection, work: Work) -> None:
    sys.modules["vllm"] = None  # type: ignore[assignment]  # not used here, and TRL would import it all the same
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(work.threads)
    config = config_of(work)
    algorithm, parts, gate = config.algorithm, RunComponents(config), Gate(connection)
    prompts, _ = parts.prompts(parts.problems.train)
    tokenizer = parts.tokenizer
    tokenizer.padding_side = "left"
    texts = [tokenizer.decode(list(prompt.ids)) for prompt in prompts]
    if tokenizer(texts[:50])["input_ids"] != [list(prompt.ids) for prompt in prompts[:50]]:
        raise RuntimeError("tokenizing the text of the prompts does not give our token ids")
    updates = algorithm.num_prompts // algorithm.minibatch_prompts
    found: dict[str, float] = {}

    def reward(prompts: list[str], completions: list[str], completion_ids: list, place: list, **_: Any) -> list[float]:
        pairs = []
        for text, at in zip(completions, place, strict=True):
            problem = parts.problems.train[at]
            pairs.append((RewardProblem(problem.id, problem.problem, problem.answer, problem.meta), text))
        scores = parts.verifier.score(pairs)
        found["generated"] = sum(len(ids) for ids in completion_ids)
        found["tokens"] = found["generated"] + sum(lengths[at] for at in place)
        found["accuracy"] = sum(score.correct for score in scores) / len(scores)
        return [score.value for score in scores]

    class Gates(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gate.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates == 0:
                gate.end(**found)

    places = {problem.id: at for at, problem in enumerate(parts.problems.train)}
    rows = [{"prompt": t, "place": places[p.problem.id]} for t, p in zip(texts, prompts, strict=True)]
    lengths = {row["place"]: len(p.ids) for row, p in zip(rows, prompts, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=parts.policy,
            reward_funcs=reward,
            args=GRPOConfig(output_dir=folder, **_settings(config, work)),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Gates()],
        )
        trainer.train()


def _settings(config: Config, work: Work) -> dict[str, Any]:
    """TRL's settings for the same problems, objective and updates."""
    algorithm = config.algorithm
    completions_a_step = algorithm.num_prompts * algorithm.samples_per_prompt
    completions_an_update = algorithm.minibatch_prompts * algorithm.samples_per_prompt
    options = {"per_device_train_batch_size": completions_an_update, **work.options}
    return {
        "loss_type": "dapo",
        "epsilon": algorithm.clip.low,
        "epsilon_high": algorithm.clip.high,
        "beta": 0.0,
        "num_generations": algorithm.samples_per_prompt,
        "generation_batch_size": completions_a_step,
        "gradient_accumulation_steps": completions_an_update // options["per_device_train_batch_size"],
        "max_completion_length": config.task.max_response_tokens,
        "temperature": config.rollout.temperature,
        "learning_rate": algorithm.optimizer.lr,
        "lr_scheduler_type": "constant",
        "max_grad_norm": algorithm.optimizer.grad_clip,
        "gradient_checkpointing": False,
        "use_cpu": config.trainer.accelerator == "cpu",
        "bf16": False,
        "max_steps": 1_000_000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1_000_000,
        **options,
    }
