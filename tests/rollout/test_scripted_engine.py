"""The scripted engine yields what was written down, in the order in which it ends."""

import pytest
import torch
from scripted_engine import ScriptedEngine, ScriptedResponse

from dapo_lit.engines.protocol import SampleRequest, Sampling
from dapo_lit.engines.samples import Sample, SampleKey

KEYS = [SampleKey(1, "p", 0, i) for i in range(3)]
REQUESTS = [SampleRequest(key, (1, 2)) for key in KEYS]
TABLE = {
    KEYS[0]: ScriptedResponse((5, 6, 7), (-0.1, -0.2, -0.3), ends_at=3.0),
    KEYS[1]: ScriptedResponse((8,), (-0.5,), ends_at=1.0),
    KEYS[2]: ScriptedResponse((9, 9), (-0.7, -0.8), ends_at=2.0, finished=False),
}


def synced(script) -> ScriptedEngine:
    engine = ScriptedEngine(script)
    engine.sync_weights([("w", torch.ones(2))], version=4)
    return engine


def test_samples_come_in_order_of_ending_with_the_synced_version():
    got = list(synced(TABLE).generate(REQUESTS, Sampling(max_response_tokens=8)))
    assert got == [
        Sample(KEYS[1], (8,), (-0.5,), True, 4),
        Sample(KEYS[2], (9, 9), (-0.7, -0.8), False, 4),
        Sample(KEYS[0], (5, 6, 7), (-0.1, -0.2, -0.3), True, 4),
    ]


def test_a_response_above_the_limit_is_cut_and_unfinished():
    cut = list(synced(TABLE).generate(REQUESTS[:1], Sampling(max_response_tokens=2)))
    assert cut == [Sample(KEYS[0], (5, 6), (-0.1, -0.2), False, 4)]


def test_a_function_is_a_script_too_and_samples_are_handed_out_one_by_one():
    engine = synced(lambda key: ScriptedResponse((key.sample_index + 1,), (0.0,), ends_at=-key.sample_index))
    iterator = engine.generate(REQUESTS, Sampling(max_response_tokens=8))
    assert next(iterator).response_ids.tolist() == [3]
    assert engine.yielded == [KEYS[2]]
    assert engine.submitted == REQUESTS


def test_it_refuses_to_sample_before_weights_are_there():
    with pytest.raises(RuntimeError, match="sync_weights"):
        ScriptedEngine(TABLE).generate(REQUESTS, Sampling(max_response_tokens=8))


def test_a_response_needs_a_log_prob_for_each_token():
    with pytest.raises(ValueError, match="one log-prob a token"):
        ScriptedResponse((1, 2), (-0.5,))
