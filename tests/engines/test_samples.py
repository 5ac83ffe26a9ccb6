"""Records that hold arrays: what continues an interrupted response knows its weights."""

from dapo_lit.engines.protocol import NO_TOKENS, PartialSample, SampleKey

KEY = SampleKey(1, "p", 0, 0)


def test_a_partial_sample_that_continues_knows_which_weights_sampled_each_token():
    partial = NO_TOKENS.extended([5, 6], [-0.5, -0.25], version=3).extended([], [], version=4)
    assert partial == PartialSample([5, 6], [-0.5, -0.25], ((3, 2),))
    sample = partial.ended(KEY, [1], [-1.0], finished=True, version=5)
    assert sample.response_ids.tolist() == [5, 6, 1]
    assert sample.versions == ((3, 2), (5, 1))
    assert (sample.num_new_tokens, sample.policy_version) == (1, 5)
