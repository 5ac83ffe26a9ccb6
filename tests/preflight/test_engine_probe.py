"""An engine that computes or draws something else than the policy ends a run before its first sample, resumed too."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import Run, rows
from tiny_policy import TINY
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import Sample, SampleRequest, Sampling
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.policy.head import token_logprobs
from dapo_lit.preflight.engine import Packed, probe_engine
from dapo_lit.preflight.policy import own_logprobs
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.collect import Collector
from dapo_lit.train import train

PROMPT = np.array([5, 6, 7], np.int32)


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**TINY | {"tie_word_embeddings": False}, vocab_size=50)
    ).eval()
    with torch.no_grad():
        made.lm_head.weight.mul_(40)  # far from uniform
    return made


class UniformEngine(TorchEngine):
    """Draws uniformly, and says of each token what the model says."""

    model: PreTrainedModel

    def generate(self, requests: Sequence[SampleRequest], sampling: Sampling) -> Iterator[Sample]:
        draw = np.random.default_rng(0)
        for sample in super().generate(requests, sampling):
            ids = draw.integers(50, size=sampling.max_response_tokens).astype(np.int32)
            whole = torch.tensor([*requests[0].prompt_ids, *ids])
            logprobs = own_logprobs(self.model, whole)[len(requests[0].prompt_ids) - 1 :]
            yield replace(sample, response_ids=ids, rollout_logprobs=logprobs.detach().numpy())


def probed(model: PreTrainedModel, engine: TorchEngine, **options: object) -> str:
    def score(packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(model, *packed, temperature=1.0)

    settings = {"narrow": False, "device": "cpu", "ranks": Ranks(), **options}
    return probe_engine(engine, PROMPT, Sampling(64, seed=3), score, **settings).words


def engine_of(model: PreTrainedModel, kind: type[TorchEngine] = TorchEngine) -> TorchEngine:
    made = kind(model.config, eos_ids=(0,), device=torch.device("cpu"), dtype=torch.float32, max_batch_size=4)
    made.sync_weights(model.state_dict().items(), 0)
    return made


def test_an_engine_that_samples_from_the_policy_passes_in_milliseconds(model):
    engine, started = engine_of(model), time.process_time()
    assert "sampled tokens are the trainer's, to " in probed(model, engine)
    assert time.process_time() - started < 1.0


def test_an_engine_with_other_weights_is_refused(model):
    engine = engine_of(model)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    with pytest.raises(ConfigError, match=r"does not compute .*\(0\.02 are allowed\)"):
        probed(model, engine)
    with pytest.raises(ConfigError, match=r"\(0.15 are allowed\)"):
        probed(model, engine, narrow=True)


def test_an_engine_that_draws_uniformly_and_reports_the_policys_log_probs_is_refused(model):
    engine = engine_of(model, UniformEngine)
    engine.model = model
    with pytest.raises(ConfigError, match=r"does not draw "):
        probed(model, engine)


def test_log_probs_that_are_no_numbers_are_refused(model):
    class Broken(TorchEngine):
        def generate(self, requests, sampling):
            for sample in super().generate(requests, sampling):
                yield replace(sample, rollout_logprobs=np.full_like(sample.rollout_logprobs, np.nan))

    with pytest.raises(ConfigError, match="inf nats"):
        probed(model, engine_of(model, Broken))


class Deaf(TorchEngine):
    """Takes weights of twice the size."""

    def sync_weights(self, named_tensors, version):
        super().sync_weights(((name, 2 * tensor) for name, tensor in named_tensors), version)


def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every engine is broken, and nothing may be sampled for a step."""
    monkeypatch.setattr("dapo_lit.engines.torch_engine.engine.TorchEngine", Deaf)
    monkeypatch.setattr(Collector, "collect", lambda *_: pytest.fail("a step was sampled"))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_and_a_resumed_run_are_refused_before_their_first_sample(compose, monkeypatch, ahead):
    settings = (f"rollout.steps_ahead={ahead}", "evaluation.every=0")
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(ConfigError, match="does not compute"):
            train(compose(*settings, "budget.steps=2"), [])
    train(compose(*settings, "budget.steps=2"), [])
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(ConfigError, match="does not compute"):
            train(compose(*settings, "budget.steps=4", "resume=true"), [])


def test_the_probe_changes_no_bit_of_a_run_and_preflight_false_skips_it(compose, monkeypatch, capsys, tmp_path):
    found = []
    for name, flag in (("with", "true"), ("without", "false")):
        run = Run(compose("budget.steps=2", f"preflight={flag}", f"runs_dir={tmp_path / name}"))
        run.fit()
        timing = ("wall_s", "time/", "perf/", "memory/")
        found.append([{k: v for k, v in row.items() if not k.startswith(timing)} for row in rows(run.folder.path)])
        assert ("engine: log-probs of " in capsys.readouterr().out) == (flag == "true")
    assert found[0] == found[1]


def test_all_ranks_refuse_what_one_of_them_finds(model):
    class Two(Ranks):
        def stack(self, values):
            return torch.stack([values, values + 1])

    with pytest.raises(ConfigError, match="by 1 nats"):
        probed(model, engine_of(model), ranks=Two(size=2))
