"""Records that hold arrays: converted once, compared and hashed by value, and the same bits after a pickle."""

import pickle

from dapo_lit.engines.protocol import NO_TOKENS, PartialSample, Sample, SampleKey

KEY = SampleKey(1, "p", 0, 0)
SAMPLE = Sample(KEY, (7, 2**31 - 1, 3), [-0.1 / 3, -1e-30, 0.0], finished=True, policy_version=2)


def test_samples_survive_the_exchange_between_ranks_bit_for_bit():
    found = pickle.loads(pickle.dumps([SAMPLE, NO_TOKENS]))
    assert found == [SAMPLE, NO_TOKENS]
    assert found[0].rollout_logprobs.tobytes() == SAMPLE.rollout_logprobs.tobytes()


def test_a_partial_sample_that_continues_knows_which_weights_sampled_each_token():
    partial = NO_TOKENS.extended([5, 6], [-0.5, -0.25], version=3).extended([], [], version=4)
    assert partial == PartialSample([5, 6], [-0.5, -0.25], ((3, 2),))
    sample = partial.ended(KEY, [1], [-1.0], finished=True, version=5)
    assert sample.response_ids.tolist() == [5, 6, 1]
    assert sample.versions == ((3, 2), (5, 1))
    assert (sample.num_new_tokens, sample.policy_version) == (1, 5)
