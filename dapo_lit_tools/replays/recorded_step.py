"""Repeats a recorded step under other switches: nothing is generated, everything else is the production code.

A recording is the training state before a step (`replay/step_000010.ckpt`, as a checkpoint) and the step's rollouts
(`rollouts/step_000010.parquet`, discarded groups too). A replay resumes from that state, as an interrupted run does,
with an engine that plays back the recorded samples. Collection, rewards, dynamic sampling, advantages,
losses and updates run as in training, and under the recorded switches they give the recorded metrics.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer
from torch import Tensor

from ablations.errors import DamagedError, UserError
from ablations.files.layout import CONFIG, before_step, kept_states
from ablations.files.record import read_config, read_record
from ablations.files.run_manifest import check_kept
from dapo_lit.build.components import RunComponents
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.foreign import foreign_config
from dapo_lit.engines.protocol import (
    NO_OBSERVATIONS,
    Observations,
    PartialSample,
    RolloutEngine,
    Sample,
    SampleKey,
    SampleRequest,
    SampleStream,
    Sampling,
)
from dapo_lit.imports import allow_imports
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Group
from dapo_lit.runs.checkpoint_files import damage_reason
from dapo_lit.runs.checkpoint_weights import check_entries
from dapo_lit.runs.resume import check_inputs, check_reference
from dapo_lit.runs.rollout_table import read_recorded, rollouts_file
from dapo_lit.runs.safe_loading import safe_state_types
from dapo_lit.step.batch import MicroBatch, RolloutStep, TokenBatch
from dapo_lit_tools.replays.sketch import save_weights


@dataclass(frozen=True)
class Recording:
    """A step of a run that can be replayed."""

    step: int
    config: Config
    checkpoint: Path
    samples: Mapping[SampleKey, Sample]
    """Samples of the groups up to the last accepted one; finished groups that were carried in are in the checkpoint."""
    scores: Mapping[SampleKey, Score]
    """The verdicts on them, which a replay under the same `reward` takes."""
    given: Container[str] | None = frozenset()
    """Dotted paths, such as that of a reward function, that the user named; None: all in the run's config are trusted.
    """

    day: date | None = None
    """The date in the run's prompts, if its chat template writes one."""

    def parts(self, config: Config | None = None) -> RunComponents:
        """The parts of the run, or of an arm with another config."""
        return RunComponents(config or self.config, day=self.day)

    @property
    def num_groups(self) -> int:
        return len({(key.problem_id, key.attempt) for key in self.samples if key.step == self.step})


def recorded_steps(run: Path) -> list[int]:
    """The steps of a run that can be replayed, ascending."""
    return [step for step in kept_states(run) if rollouts_file(run, step).is_file()]


def open_recording(run: Path, step: int | None, given: Container[str] | None = frozenset()) -> Recording:
    """Reads a recorded step; `None` means the only one. given: as in Recording."""
    tables = (rollouts_file(run, kept).relative_to(run).as_posix() for kept in kept_states(run))
    check_kept(run, "replay/", *tables)
    config, steps = foreign_config(read_config(run), run / CONFIG, given), recorded_steps(run)
    if not steps:
        raise ConfigError(f"{run}: no step is recorded; replay.record=[10] keeps step 10 of the next run for a replay")
    recorded = f"recorded: {', '.join(map(str, steps))}"
    if step is None and len(steps) > 1:
        raise ConfigError(f"{run}: which step? Name one, such as step={steps[0]} ({recorded})")
    chosen = steps[0] if step is None else step
    if chosen not in steps:
        raise ConfigError(f"{run}: step {chosen} is not recorded ({recorded})")
    checkpoint = before_step(run, chosen)
    if checkpoint.is_dir():
        raise UserError(f"{checkpoint} was written by several processes; a replay reads recordings of one")
    if reason := damage_reason(checkpoint):
        raise DamagedError(f"{checkpoint} is damaged ({reason}); {recorded}")
    rows = read_recorded(rollouts_file(run, chosen))
    examined = rows[rows["examined"]].to_dict("records")
    samples = [_sample(row) for row in examined]
    scores = {sample.key: _score(row) for sample, row in zip(samples, examined, strict=True)}
    record, by_key = read_record(run), {sample.key: sample for sample in samples}
    day = datetime.fromisoformat(str(record["prompt_date"])).date() if record.get("prompt_date") else None
    recording = Recording(chosen, config, checkpoint, by_key, scores, given, day)
    if record.get("inputs"):
        with allow_imports(given):
            inputs = recording.parts(without_benchmarks(config)).inputs
        check_inputs(run, config.model_dump(mode="json"), inputs, "replay a run that read what is there now")
    return recording


def without_benchmarks(config: Config) -> Config:
    """They are not needed here, and would be loaded."""
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"benchmarks": ()})})


def _sample(row: Mapping[Any, Any]) -> Sample:
    return Sample(
        key=SampleKey(
            int(row["submitted_step"]), str(row["problem_id"]), int(row["attempt"]), int(row["sample_index"])
        ),
        response_ids=row["response_ids"],
        rollout_logprobs=row["rollout_logprobs"],
        finished=not row["truncated"],
        policy_version=int(row["policy_version"]),
        observations=Observations(row["observation_ids"], row["observation_places"])
        if "ended_by" in row
        else NO_OBSERVATIONS,
        ended_by=str(row.get("ended_by", "")),
        turn_rewards=tuple(map(float, row.get("turn_rewards", ()))),
    )


def _score(row: Mapping[Any, Any]) -> Score:
    if row["correct"] is None:
        return Score(False, 0.0, error=row["error"])
    answer = row["extracted"] if isinstance(row["extracted"], str) else None
    return Score(bool(row["correct"]), float(row["reward"]), answer)


class RecordedVerdicts:
    """Gives back the verdicts of a recording in place of a verifier: a late one would not be late again."""

    wants_groups = False
    wants_ids = False
    """The scores are there already."""

    def __init__(self, scores: Mapping[SampleKey, Score]) -> None:
        self._scores = scores
        self._ready: list[tuple[SampleKey, Score]] = []

    def submit(self, ticket: SampleKey, problem: RewardProblem, text: str) -> None:
        self._ready.append((ticket, self._scores[ticket]))

    def submit_group(self, completions: Sequence[tuple[SampleKey, RewardProblem, str]]) -> None:
        for completion in completions:
            self.submit(*completion)

    def collect(self) -> list[tuple[SampleKey, Score]]:
        ready, self._ready = self._ready, []
        return ready

    def drain(self, gives_up: Callable[[int], bool] = lambda waiting: False) -> list[tuple[SampleKey, Score]]:
        return self.collect()


class PlaybackEngine(RolloutEngine, SampleStream):
    """Gives back the samples of a recording; its own stream, in which whatever was submitted ends at the next step."""

    reproducible = True
    draws = False

    def __init__(self, samples: Mapping[SampleKey, Sample]) -> None:
        self._samples = samples
        self._waiting: dict[SampleKey, SampleRequest] = {}
        self.concurrency = max(1, len(samples))

    def sync_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """The samples are those of the recorded weights."""

    def open(self, sampling: Sampling) -> "PlaybackEngine":
        self._waiting = {}
        return self

    def close(self) -> None:
        """Nothing to free."""

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Raises ConfigError for a sample that was not recorded: the problems are not those of the run any more."""
        for request in requests:
            if request.key not in self._samples:
                raise ConfigError(
                    f"problem {request.key.problem_id} (attempt {request.key.attempt}) was not sampled in the recorded "
                    "step; the task's problems or their order have changed since"
                )
            self._waiting[request.key] = request

    def step(self) -> list[Sample]:
        ended, self._waiting = list(self._waiting), {}
        return [self._samples[key] for key in ended]

    def withdraw(self, keys: Collection[SampleKey]) -> dict[SampleKey, PartialSample]:
        return {key: self._waiting.pop(key).partial for key in keys if key in self._waiting}


class TokenLog:
    """Observes the updates of a step: every token of every update, the first gradient and the sum of all.

    weights_now: the policy's; they are saved in `folder` unless it is None.
    """

    def __init__(self, weights_now: Callable[[], Sequence[Tensor]], folder: Path | None) -> None:
        self._weights_now = weights_now
        self._folder = folder
        self.weights: list[Path] = []
        """The files of those before each update."""
        self.rows: list[dict[str, Tensor]] = []
        self.losses: list[float] = []
        self.first: list[Tensor] | None = None
        self.summed: list[Tensor] | None = None

    def micro_batch(
        self, epoch: int, micro: MicroBatch, logprobs: Tensor, old: Tensor, advantages: Tensor, weights: Tensor
    ) -> None:
        found = {"logprob": logprobs, "old_logprob": old, "advantage": advantages, "weight": weights}
        numbers = {
            name: torch.full_like(micro.tokens, value)
            for name, value in (("epoch", epoch + 1), ("update", len(self.losses) + 1))
        }
        places = {"place": micro.tokens, "completion": micro.completions, "token_id": micro.targets}
        self.rows.append({name: x.detach().cpu() for name, x in (numbers | places | found).items()})

    def update(self, loss: float, gradients: Sequence[Tensor]) -> None:
        self.losses.append(loss)
        if self._folder is not None:
            self.weights.append(self._folder / f"weights_{len(self.weights)}.safetensors")
            save_weights(self.weights[-1], self._weights_now())
        if self.summed is None:
            self.first, self.summed = [g.clone() for g in gradients], [g.clone() for g in gradients]
        else:
            torch._foreach_add_(self.summed, list(gradients))


@dataclass
class Replayed:
    """A step as it was under the switches of `config`."""

    config: Config
    accepted: list[Group]
    generated: list[Group]
    batch: TokenBatch | None
    """None: no group to learn from."""
    metrics: dict[str, float | None]
    """Metrics of the updates, under the names in metrics.jsonl."""
    log: TokenLog


class _OneStep(Callback):
    """Ends the run after the recorded step, and keeps that step."""

    step: RolloutStep | None = None

    def on_train_batch_end(
        self, trainer: Trainer, module: DAPOModule, outputs: Any, batch: RolloutStep, batch_idx: int
    ) -> None:
        self.step = batch
        trainer.should_stop = True


def replay(recording: Recording, config: Config, weights_in: Path | None = None) -> Replayed:
    """The recorded step with the switches of `config`, from the weights and the optimizer's state before it.

    If dynamic sampling keeps fewer groups than the step wants, the batch is smaller: nothing new can be generated.
    weights_in: a folder for the weights before each update; None: they are not kept.

    Raises UntrustedError for code that the config names and the user did not.
    """
    with allow_imports(recording.given):
        return _replay(recording, config, weights_in)


def trained_weights(module: DAPOModule) -> list[Tensor]:
    """Trainable parameters, in the order of the logged gradients."""
    return [p for p in module.policy.parameters() if p.requires_grad]


def _replay(recording: Recording, config: Config, weights_in: Path | None) -> Replayed:
    parts = recording.parts(config)
    check_reference(recording.checkpoint.parent.parent, config, parts.base.weights if parts.base else None)
    datamodule = RolloutDataModule(config, parts)
    datamodule.setup("fit")
    assert datamodule.collector is not None
    setup = datamodule.collector.setup
    setup.engine = PlaybackEngine(recording.samples)
    if config.reward == recording.config.reward:
        setup.verifier = RecordedVerdicts(recording.scores)
    exhausted = setup.rules.on_exhausted
    setup.rules = replace(
        setup.rules,
        max_groups=recording.num_groups,
        on_exhausted="train_smaller" if exhausted == "error" else exhausted,
    )
    module = DAPOModule(config, lambda: parts.policy)
    module.logs = False  # nobody reads Lightning's copy of the metrics, and it takes a third of a small replay
    module.observer = log = TokenLog(lambda: trained_weights(module), weights_in)
    one_step = _OneStep()
    trainer = build_trainer(config, [one_step], {"accelerator": config.trainer.accelerator, "devices": 1})
    check_entries(recording.checkpoint)
    with safe_state_types(recording.checkpoint):
        trainer.fit(module, datamodule=datamodule, ckpt_path=recording.checkpoint, weights_only=True)
    # Module and trainer hold each other, and Python looks for such circles too late: what is large goes now.
    module.to("meta")
    trainer.strategy.optimizers = []
    step = one_step.step
    assert step is not None
    assert step.step == recording.step
    collected = step.collected
    return Replayed(config, collected.accepted, collected.generated, step.tokens, module.step_metrics, log)
