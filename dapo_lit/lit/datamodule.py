"""Rollouts as training data: one batch of the trainer is one rollout step, sampled with the current weights.

Validation data are evaluations: of the held-out problems, and of each benchmark.
With `rollout.steps_ahead` later steps are sampled during training, with earlier weights (rollout/steps_ahead.py).
"""

import time
from collections.abc import Callable, Iterator
from pickle import UnpicklingError
from typing import Any

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from ablations.errors import DamagedError
from ablations.inputs import differing, in_words, kind_of_part
from ablations.screen import StatusLine
from dapo_lit.build.components import RunComponents
from dapo_lit.build.engine import ranks_per_engine
from dapo_lit.build.problem_sets import OpenBenchmark
from dapo_lit.config import Config, ConfigError
from dapo_lit.data.selection import SelectionReport
from dapo_lit.engines.protocol import Sampling
from dapo_lit.evaluation.sampled import Evaluation, evaluate
from dapo_lit.lit.engine_weights import EngineWeights
from dapo_lit.log import log
from dapo_lit.preflight.training import check_run
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.collect import Collector, ProblemOrder
from dapo_lit.rollout.metrics import batch_metrics, reflection, rollout_metrics, staleness, task_metrics, turn_metrics
from dapo_lit.rollout.rank_sampling import CollectionSetup
from dapo_lit.rollout.records import CollectedStep, Prompt
from dapo_lit.rollout.step_collection import StopRequestedError
from dapo_lit.rollout.steps_ahead import Snapshot, StepsAhead
from dapo_lit.runs.safe_loading import loads_states
from dapo_lit.seeds import stream_seed
from dapo_lit.step.batch import RolloutStep, token_batch
from dapo_lit.switches.algorithm import collection_rules, loss_mask, reward_shaping


class OnDemand(IterableDataset):
    """Makes an item when it is asked for one.

    It has a length because Lightning's loop otherwise prefetches a batch, and every rollout would be one step stale.
    """

    def __init__(self, length: int, items: Callable[[], Iterator[Any]]) -> None:
        self._length, self._items = length, items

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._items()


def loader(items: OnDemand) -> DataLoader:
    """One item a batch, as it is."""
    # A loader draws a seed for its workers each time it starts. From a generator of its own: a resumed run starts one
    # more, and would leave the process's generators a draw ahead of those of a run that never stopped.
    return DataLoader(items, batch_size=None, num_workers=0, generator=torch.Generator("cpu"))


class RolloutDataModule(LightningDataModule):
    """Holds problems, engine, verifier and dynamic sampling, for one call of the trainer.

    Its state is the same on every rank.

    config: of the whole run.
    parts: problems, policy, engine and verifier; None: they are built from the config and checked.
    stop_requested: whether sampling is to end early.
    hurries: whether a run that stops has no time left to sample steps ahead before it saves.
    ranks: the processes that train together.
    """

    def __init__(
        self,
        config: Config,
        parts: RunComponents | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
        hurries: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.config = config
        self.parts = parts or RunComponents(config)
        self._checks = parts is None
        self._closed = False
        self.stop_requested, self.hurries = stop_requested, hurries
        self.ranks = (ranks or Ranks()).sharing_engines(ranks_per_engine(config.rollout))
        self.next_step = 1
        """The step to collect next: one after the last whole step, two after it while a step is being trained on."""
        self.selection = SelectionReport()
        self.heldout: list[Prompt] = []
        self.benchmarks: list[OpenBenchmark] = []
        self.collector: Any = None  # a Collector from setup on
        self._restored: dict[str, Any] | None = None
        self._ahead = StepsAhead(self._sample)
        self._loss_mask = loss_mask(config.algorithm)
        self._weights: Any = None  # EngineWeights from setup on

    def setup(self, stage: str) -> None:
        """Reads and checks the problems before anything expensive starts."""
        # A second fit with a closed engine would fail in the middle of its first step.
        if self._closed:
            raise RuntimeError("a RolloutDataModule closes its engine after fit or validate; make another one")
        if self.collector is not None:
            return
        config, parts = self.config, self.parts
        StatusLine.enabled = config.logger.progress != "none" and self.ranks.rank == 0
        if self._checks:
            check_run(parts)
        found = parts.problems
        # Before the engine is built, which is the slow part with vLLM.
        parts.check_answers([*found.train, *found.heldout])
        train, num_long = parts.train_prompts
        self.heldout, num_long_heldout = parts.heldout_prompts
        self.selection = found.selection.with_prompts(
            len(train),
            len(self.heldout),
            num_long,
            num_long_heldout,
            asked_train=config.task.num_problems,
            asked_heldout=config.task.num_heldout,
        )
        self.benchmarks = parts.benchmarks
        setup = CollectionSetup(
            prompts=train,
            engine=parts.engine(self.ranks, self._stops_sampling),
            verifier=parts.verifier,
            decode=parts.decode,
            shape=reward_shaping(config),
            rules=collection_rules(config.algorithm),
            sampling=Sampling(
                max_response_tokens=config.task.max_response_tokens,
                temperature=config.rollout.temperature,
                # Its own stream, so that a placebo changes the noise and neither the order of problems nor the
                # mini-batches.
                seed=stream_seed(config.seed, config.rollout.noise_stream),
            ),
            stop_requested=self._stops_sampling,
            ranks=self.ranks.of_sampling,
        )
        self.collector = Collector(setup=setup, order=ProblemOrder(len(train), config.seed))
        self._weights = EngineWeights(parts, setup, self.ranks)
        if self._restored is not None:
            self._restore(self._restored)

    def _stops_sampling(self) -> bool:
        """A step ahead is completed before a stopping run saves, if there is time: the resumed run trains on the same
        step."""
        return self._ahead.cancelled if self._ahead.is_sampling else self.stop_requested()

    def train_dataloader(self) -> DataLoader:
        def steps() -> Iterator[RolloutStep]:
            while self.next_step <= self.config.budget.steps:
                yield self.collect(self.next_step)

        return loader(OnDemand(self.config.budget.steps, steps))

    def val_dataloader(self) -> DataLoader:
        """Of (what is evaluated, whether the run ends with it). It is sampled in the step, not here: Lightning fetches
        before the hooks in which a callback gives the policy averaged weights."""
        return loader(OnDemand(len(self.labels), lambda: iter([(label, False) for label in self.labels])))

    def test_dataloader(self) -> DataLoader:
        """As the evaluation that ends a run, with its number of samples."""
        return loader(OnDemand(len(self.labels), lambda: iter([(label, True) for label in self.labels])))

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # micro-batches move one by one

    def collect(self, step: int) -> RolloutStep:
        """Rollout step `step`, sampled with the current weights or, with steps ahead, with earlier ones."""
        started = time.perf_counter()
        module, ahead = self.trainer.lightning_module, self._ahead
        version = module.policy_version
        # Of several ranks none can leave alone.
        collected = ahead.first(self.stop_requested if self.ranks.size == 1 else lambda: False)
        waited_s = None if collected is None else time.perf_counter() - started
        queued = len(ahead) - (collected is not None)
        # Never beyond the budget: a step that nobody trains on is wasted.
        last = min(self.config.rollout.steps_ahead, self.config.budget.steps - step)
        later = range(queued + 1, last + 1)
        given, weights = time.perf_counter(), None
        # The engine may be sampling; not if it was not probed yet: then the queue is that of a checkpoint.
        if queued and later and not self._weights.is_unprobed:
            weights = self._weights.snapshot(module)
        elif later or collected is None:
            self._weights.sync(module)
        sync_s = time.perf_counter() - given
        if collected is None:
            collected = self._sample(step, version)
        else:  # if a step before made no update, the samples are fresher than planned
            collected.policy_version = version
            collected.metrics |= staleness(collected.accepted, version)
        # Both here, where nothing can fail in between: an error above saves a state in which the step is still queued,
        # and one below none.
        self.next_step = step + 1
        if len(ahead) > queued:
            ahead.remove_first()
        for steps in later:
            ahead.start(step + steps, version + steps, weights)
        groups = collected.accepted
        tokens = token_batch(groups, self._loss_mask(groups), version) if groups else None
        return RolloutStep(collected, tokens, sync_s, started, self.metrics(collected), waited_s)

    def metrics(self, collected: CollectedStep) -> dict[str, Any]:
        """The metrics of a step's samples."""
        row = rollout_metrics(collected.counted) | batch_metrics(collected.accepted) | collected.metrics
        if self.config.turns.environment is not None:
            row |= turn_metrics(collected.counted)
        row |= task_metrics(collected.counted, self.parts.problems.metrics)
        reflecting = reflection(collected.counted, self.parts.reflection, self.parts.decode)
        return row | {"rollout/reflection_frac": reflecting}

    def _sample(self, step: int, version: int, weights: Snapshot | None = None) -> CollectedStep:
        """Samples with `weights` (None: those that the engine has); the weights of `version` train on it."""
        device = self.trainer.strategy.root_device
        if device.type == "cuda":  # a new thread is on the first one
            torch.cuda.set_device(device)
        if weights is not None:
            self.collector.setup.engine.sync_weights(*weights)
        collected: CollectedStep = self.collector.collect(step, version)
        return collected

    @property
    def labels(self) -> list[str]:
        """What an evaluation has, by the names in its metrics."""
        heldout = [self.config.task.label] if self.heldout else []
        return heldout + [benchmark.settings.name for benchmark in self.benchmarks]

    def evaluations(self, final: bool = False) -> dict[str, Evaluation]:
        """Samples the held-out problems, where the task has some, and the benchmarks with the current weights.

        final: the run ends here: evaluation.final_samples responses to each held-out problem.
        """
        return {label: self._evaluation(label, final) for label in self.labels}

    def validate(self, label: str, final: bool) -> Evaluation:
        """One of `labels`, in a Trainer of one's own: with the weights that the policy has at this moment."""
        # Those of a callback that averages weights: the version does not tell them from the policy's own.
        self._weights.forget()
        try:
            return self._evaluation(label, final)
        finally:
            self._weights.forget()

    def _evaluation(self, label: str, final: bool) -> Evaluation:
        # The engine has one user at a time; a step ahead may be using it.
        self._ahead.wait(self.hurries)
        self._weights.sync(self.trainer.lightning_module)
        settings, task = self.config.evaluation, self.config.task
        setup, ranks, stop = self.collector.setup, self.ranks, self._check_stop
        if self.heldout and label == task.label:
            limit = settings.max_response_tokens or task.max_response_tokens
            sampling = Sampling(limit, settings.temperature, settings.top_p, seed=self.config.seed)
            scored = (setup.engine, self.parts.verifier, setup.decode, sampling, ranks)
            samples = settings.final_samples if final else None
            return evaluate(self.heldout, settings.samples, *scored, samples, gives_up=stop)
        (b,) = (benchmark for benchmark in self.benchmarks if benchmark.settings.name == label)
        scored = (setup.engine, b.verifier, b.decode, b.sampling, ranks)
        return evaluate(b.prompts, b.settings.samples, *scored, gives_up=stop)

    def _check_stop(self, waiting: int) -> bool:
        """While an evaluation samples and waits for verdicts. Of several ranks none can leave alone."""
        if self.ranks.size == 1 and self.stop_requested():
            raise StopRequestedError
        return False

    def state_dict(self) -> dict[str, Any]:
        # Sampled steps are part of the state: a resumed run trains on the same samples.
        ahead = [step.mapped(lambda problem: problem.stub) for step in self._ahead.wait(self.hurries)]
        if len(ahead) < len(self._ahead) and self.hurries() and self.ranks.rank == 0:
            log.warning(
                f"half of trainer.grace_s is over: {len(self._ahead) - len(ahead)} steps ahead are not saved, and the "
                "resumed run samples them with newer weights"
            )
        state = {"next_step": self.next_step, "collector": self.collector.state_dict(), "ahead": ahead}
        return state | {"inputs": self._inputs, "reward_settings": self.config.reward.model_dump_json()}

    @property
    def _inputs(self) -> dict[str, str]:
        """Digests of what is trained on and from; {} on all ranks but the first, whose state is saved."""
        if self.ranks.rank > 0:
            return {}
        inputs = self.parts.inputs
        return {name: digest for name, digest in inputs.items() if kind_of_part(name) not in ("heldout", "benchmark")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_step = state["next_step"]
        self._restored = state
        if self.collector is not None:
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        # Absent in checkpoints of earlier versions.
        if changed := differing(state.get("inputs") or {}, self._inputs):
            raise ConfigError(
                f"the checkpoint was written with another state of {in_words(changed, self.config.model_dump())}; "
                "restore that, or start a new run"
            )
        self.collector.load_state_dict(state["collector"])
        if self.config.fork is not None and state.get("reward_settings") != self.config.reward.model_dump_json():
            self.collector.forget_verdicts()
        whole = [group.group for group in self.collector.carried if group.finished] + self.collector.earlier
        # A fork or a replay may shape rewards in another way than the run that saved them.
        for group in whole:
            self.collector.setup.shape([*group.completions, *group.missing])
        known = {prompt.problem.id: prompt.problem for prompt in self.collector.setup.prompts}
        self._ahead.restore(step.mapped(lambda stub: known[stub.id]) for step in state["ahead"] or ())

    def on_exception(self, exception: BaseException) -> None:
        """Called after the callbacks have saved, instead of teardown. The user sees the original exception.

        Raises DamagedError where torch refuses a checkpoint for want of `continuing`: its own text recommends the flag
        that executes the file.
        """
        try:
            self.close()
        except Exception as fault:
            log.warning(f"the engine could not be closed: {type(fault).__name__}: {fault}")
        if isinstance(exception, UnpicklingError) and not loads_states():
            path = str(self.trainer.ckpt_path) if self.trainer else ""
            raise DamagedError(
                f"{path}: a training state is loaded within `with dapo_lit.lit.fit.continuing({path!r}):` around "
                "trainer.fit, which executes nothing of the file (docs/library.md)"
            ) from None

    def teardown(self, stage: str) -> None:
        self.close()

    def close(self) -> None:
        """Closes the engine and the verifiers' worker processes."""
        self._closed = True
        self._ahead.close()
        verifiers = [benchmark.verifier for benchmark in self.benchmarks]
        if self.collector is not None:
            verifiers.append(self.parts.verifier)
        for verifier in verifiers:
            verifier.close()
        # Last: one that has failed may fail here as well.
        if self.collector is not None:
            self.collector.setup.engine.close()
