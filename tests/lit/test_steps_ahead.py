"""Rollouts sampled while the policy trains on earlier steps: k steps old, never another number."""

import itertools
import os
import re
import signal
import threading
import time

import pandas as pd
import pytest
import torch
from scripted_engine import ScriptedEngine, ScriptedResponse
from small_runs import RUN, Run, rows, untimed

from dapo_lit.engines.protocol import EngineError, Sample, SampleKey, TokenIds
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.lit.callbacks import Recorder
from dapo_lit.lit.module import DAPOModule
from dapo_lit.rollout.collect import Collector, ExhaustedError
from dapo_lit.rollout.rank_sampling import RankSampling
from dapo_lit.rollout.steps_ahead import StepsAhead
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.step.scoring import PolicyForward, score
from dapo_lit.train import train

AHEAD = "rollout.steps_ahead=1"


@pytest.mark.parametrize(
    ("ahead", "stale", "sampled_with"),
    [(1, [0, 1, 1, 1, 1], [0, 0, 1, 2, 3]), (2, [0, 1, 2, 2, 2], [0, 0, 0, 1, 2])],
)
def test_every_batch_is_k_steps_old_as_soon_as_there_are_weights_that_old(
    compose, monkeypatch, ahead, stale, sampled_with
):
    planned, collect = {}, Collector.collect

    def noted(self, step, policy_version):
        planned[step] = policy_version
        return collect(self, step, policy_version)

    monkeypatch.setattr(Collector, "collect", noted)
    run = Run(compose(f"rollout.steps_ahead={ahead}", "budget.steps=5", "logger.rollouts_every=1"))
    run.fit()
    trained = rows(run.folder.path)[1:]
    assert [row["sampling/staleness_max"] for row in trained] == stale
    assert [row["sampling/staleness_mean"] for row in trained] == stale
    assert [row["sampling/stale_tokens_frac"] for row in trained] == [0, 1, 1, 1, 1]
    versions = [
        set(pd.read_parquet(file)["policy_version"])
        for file in sorted((run.folder.path / "rollouts").glob("*.parquet"))
    ]
    assert versions == [{version} for version in sampled_with]
    # the age of what is carried over or replayed counts to the weights that will train on it
    assert planned == {step: step - 1 for step in range(1, 6)}
    assert all(row["loss/policy"] is not None for row in trained)


def test_a_step_is_sampled_with_the_weights_of_its_version_though_the_policy_has_trained_on(compose, monkeypatch):
    """The engine gets version 1, for step 4, no earlier than the policy has version 2."""
    trained, has_version_2 = {}, threading.Event()
    given: dict[int, dict[str, torch.Tensor]] = {}
    sync, updates = TorchEngine.sync_weights, DAPOModule.make_updates

    def syncs(self, named_tensors, version):
        if version == 1:
            assert has_version_2.wait(60)
        given[version] = {name: tensor.clone() for name, tensor in named_tensors}
        sync(self, given[version].items(), version)

    def trains(self, batch):
        trained[self.policy_version] = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        updates(self, batch)
        if self.policy_version == 2:
            has_version_2.set()

    monkeypatch.setattr(TorchEngine, "sync_weights", syncs)
    monkeypatch.setattr(DAPOModule, "make_updates", trains)
    Run(compose("rollout.steps_ahead=2", "budget.steps=5", "evaluation.every=0")).fit()
    assert given.keys() == {0, 1, 2, 5}  # 5: the evaluation after training
    for version in (0, 1, 2):
        assert all(torch.equal(given[version][name], tensor) for name, tensor in trained[version].items())
    assert any(not torch.equal(given[1][name], tensor) for name, tensor in trained[2].items())


def test_the_old_policy_of_an_overlapped_step_is_the_one_that_sampled_it(compose, monkeypatch):
    scored = []

    def noted(forward, objective, batch, later=()):
        found = score(forward, objective, batch, later)
        scored.append((found[0].old_logprobs, batch.rollout_logprobs))
        return found

    monkeypatch.setattr("dapo_lit.lit.module.score", noted)
    Run(compose(AHEAD, "budget.steps=2")).fit()
    old, sampled = scored[1]
    assert torch.equal(old, sampled)


def test_a_run_that_is_stopped_while_it_trains_goes_on_bit_for_bit(compose, tmp_path, monkeypatch):
    settings = ("rollout.steps_ahead=2", "budget.steps=6", "preflight=false")
    train(compose(*settings, f"runs_dir={tmp_path / 'whole'}"), [])
    step = DAPOModule.training_step

    def asks_to_stop(self, batch, index):
        if batch.step == 3:
            self.trainer.datamodule.stop_requested.requested = True
        return step(self, batch, index)

    stopped = f"runs_dir={tmp_path / 'stopped'}"
    with monkeypatch.context() as patch:
        patch.setattr(DAPOModule, "training_step", asks_to_stop)
        with pytest.raises(SystemExit, match="0"):
            train(compose(*settings, stopped), [])
    assert len(untimed(tmp_path / "stopped" / RUN)) == 4
    train(compose(*settings, stopped, "resume=true"), [])
    assert untimed(tmp_path / "stopped" / RUN) == untimed(tmp_path / "whole" / RUN)


def test_a_stop_saves_within_its_grace_period_though_a_step_ahead_takes_longer(compose, tmp_path, monkeypatch, capsys):
    sample, after = RankSampling._sample, Recorder.on_train_batch_end

    def slow(self):
        time.sleep(0.3)
        sample(self)

    def signalled(self, trainer, module, outputs, batch, index):
        after(self, trainer, module, outputs, batch, index)
        if batch.step == 2:
            monkeypatch.setattr(RankSampling, "_sample", slow)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    monkeypatch.setattr(Recorder, "on_train_batch_end", signalled)
    settings = ("rollout.steps_ahead=2", "budget.steps=6", "preflight=false", "trainer.grace_s=8")
    started = time.monotonic()
    with pytest.raises(SystemExit, match="0"):
        train(compose(*settings), [])
    said = capsys.readouterr().out
    stopped = re.search(r"(\d) steps ahead are not saved", said)
    assert stopped, said
    folder = tmp_path / "runs" / RUN
    last = complete(folder / "checkpoints")[-1]
    saved = torch.load(last, weights_only=False)["RolloutDataModule"]
    assert saved["next_step"] == len(untimed(folder))
    assert len(saved["ahead"]) + int(stopped[1]) == 2
    assert time.monotonic() - started < 60
    monkeypatch.undo()
    train(compose(*settings, "resume=true"), [])
    assert [row["step"] for row in untimed(folder)] == [*range(7)]


def test_the_step_after_one_without_an_update_is_fresher_than_planned(compose):
    """All answers of step 2 are wrong: step 3, sampled with version 1 while step 2 trained, trains version 1."""
    settings = ("budget.steps=4", "evaluation.every=0", "algorithm.dynamic_sampling.max_rounds=1", "preflight=false")
    run = Run(compose(AHEAD, *settings))  # the script is no policy's
    right = {problem.id: problem.answer for problem in run.parts.problems.train}
    end = run.parts.tokenizer.eos_token_id

    def response(key: SampleKey) -> ScriptedResponse:
        text = right[key.problem_id] if key.step != 2 and key.sample_index % 2 else "99"
        ids = (*run.parts.tokenizer(text, add_special_tokens=False)["input_ids"], end)
        return ScriptedResponse(ids, (-2.0,) * len(ids))

    run.parts._build_engine = lambda: ScriptedEngine(response)
    run.fit()
    trained = rows(run.folder.path)[1:]
    assert [row["loss/policy"] is None for row in trained] == [False, True, False, False]
    for key in ("sampling/staleness_max", "sampling/staleness_mean", "sampling/stale_tokens_frac"):
        assert [row[key] for row in trained] == [0, None, 0, 1]


def test_what_fails_while_it_samples_ahead_ends_the_run_after_the_steps_before_are_saved(compose, monkeypatch):
    collect, failing = Collector.collect, 4

    def fails(self, step, version):
        if step == failing:
            raise ExhaustedError("nothing to learn from")
        return collect(self, step, version)

    settings = ("rollout.steps_ahead=2", "budget.steps=5", "evaluation.every=2", "trainer.checkpoint_every=2")
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", fails)
        run = Run(compose(*settings))
        with pytest.raises(ExhaustedError, match="nothing to learn from"):
            run.fit()
    written = rows(run.folder.path)
    assert [row["step"] for row in written] == list(range(failing))
    assert written[2]["eval/four_sums/avg@2"] is not None  # asked for while a later step was under way
    assert [file.name for file in run.folder.checkpoints] == ["step_000002.ckpt", "step_000003.ckpt"]
    train(compose(*settings, "resume=true"), [])
    assert [row["step"] for row in rows(run.folder.path)] == list(range(6))


def test_a_response_carried_into_later_steps_has_its_tokens_versions_and_their_log_probs(compose, monkeypatch):
    """Unfinished responses of step s, sampled with version s - 2, go on with version s - 1 while the policy trains."""
    given: dict[int, dict[str, torch.Tensor]] = {}
    samples: dict[int, list[tuple[TokenIds, Sample]]] = {}
    sync, updates = TorchEngine.sync_weights, DAPOModule.make_updates

    def syncs(self, named_tensors, version):
        given[version] = {name: tensor.clone() for name, tensor in named_tensors}
        sync(self, given[version].items(), version)

    def trains(self, batch):
        groups = batch.collected.accepted
        samples[batch.step] = [(group.prompt_ids, c.sample) for group in groups for c in group.completions]
        updates(self, batch)

    monkeypatch.setattr(TorchEngine, "sync_weights", syncs)
    monkeypatch.setattr(DAPOModule, "make_updates", trains)
    carried = "algorithm.dynamic_sampling.carry_over=all"
    run = Run(compose(AHEAD, carried, "budget.steps=6", "evaluation.every=0", "algorithm.optimizer.lr=0.01"))
    run.fit()
    model, mixed = run.parts.policy.eval(), 0
    for step, (prompt, sample) in ((step, each) for step, found in samples.items() for each in found):
        versions = [version for version, _ in sample.versions]
        assert versions == list(range(versions[0], versions[-1] + 1))
        assert versions[-1] <= max(step - 2, 0)
        ids, mixed = torch.tensor([*prompt, *sample.response_ids]), mixed + (len(versions) > 1)
        ends = itertools.accumulate(count for _, count in sample.versions)
        for (version, count), end in zip(sample.versions, ends, strict=True):
            model.load_state_dict(given[version], strict=False)
            with torch.no_grad():
                logprobs = model(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            found = logprobs.gather(1, ids[len(prompt) :, None])[end - count : end, 0]
            sampled = torch.tensor(sample.rollout_logprobs[end - count : end])
            torch.testing.assert_close(found, sampled, rtol=0, atol=1e-4)
    assert mixed > 2


@pytest.mark.parametrize(("ahead", "fails"), [(1, "in the sync"), (1, "in the wait"), (2, "in the wait")])
def test_a_step_sampled_ahead_is_in_the_state_that_an_error_saves(compose, tmp_path, monkeypatch, ahead, fails):
    """Between the wait for a step and the updates on it: nothing is lost, and the resumed run repeats nothing."""
    settings = (f"rollout.steps_ahead={ahead}", "budget.steps=5", "evaluation.every=0", "preflight=false")
    train(compose(*settings, f"runs_dir={tmp_path / 'whole'}"), [])
    sync, first, waits = TorchEngine.sync_weights, StepsAhead.first, []

    def breaks(self, named_tensors, version):
        if version == 3:
            raise EngineError("no server is left")
        sync(self, named_tensors, version)

    def is_interrupted(self, stops):
        waits.append(first(self))
        if len(waits) == 4:
            raise KeyboardInterrupt
        return waits[-1]

    broken = f"runs_dir={tmp_path / 'broken'}"
    with monkeypatch.context() as patch:
        if fails == "in the sync":
            patch.setattr(TorchEngine, "sync_weights", breaks)
        else:
            patch.setattr(StepsAhead, "first", is_interrupted)
        with pytest.raises((EngineError, KeyboardInterrupt, SystemExit)):
            train(compose(*settings, broken), [])
    assert [row["step"] for row in untimed(tmp_path / "broken" / RUN)] == [0, 1, 2, 3]
    train(compose(*settings, broken, "resume=true"), [])
    assert untimed(tmp_path / "broken" / RUN) == untimed(tmp_path / "whole" / RUN)


def test_a_batch_of_older_weights_is_not_scored_where_nothing_needs_it(compose, monkeypatch):
    scored, logprobs = [], PolicyForward.logprobs

    def noted(self, micro, model=None):
        scored.append(len(micro.targets))
        return logprobs(self, micro, model)

    monkeypatch.setattr(PolicyForward, "logprobs", noted)
    counts = []
    for settings in ((), ("algorithm.correction.kind=tis",)):
        scored.clear()
        Run(compose(AHEAD, "budget.steps=3", "evaluation.every=0", "algorithm.minibatch_prompts=1", *settings)).fit()
        counts.append(sum(scored))
    assert counts[0] < counts[1] / 2
