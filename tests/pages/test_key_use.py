"""A key of the config is there for somebody: a study, a shipped config, a page, or a trainer that people come from."""

import key_use
import pytest
from tables import key_names

# Uses that were looked up by hand in cells, conf/ and pages.
KNOWN = [
    ("algorithm.clip.high", "configs", "algorithm/gspo"),
    ("algorithm.kl.beta", "configs", "algorithm/grpo"),
    ("algorithm.techniques.clip_higher", "studies", "factorial_joint"),
    ("algorithm.dynamic_sampling.carry_over", "pages", "docs/overlap.md"),
    ("algorithm.samples_per_prompt", "trainers", "verl"),
]


@pytest.mark.parametrize(("key", "kind", "user"), KNOWN)
def test_a_use_is_found(key, kind, user):
    assert user in getattr(key_use.use_of(key), kind)


def test_every_key_has_a_use():
    """A new key without a reader is a constant with its reason."""
    assert [key for key in key_names() if not key_use.use_of(key).any] == []


def test_a_key_that_nobody_sets_or_names_has_no_use():
    assert not key_use.use_of("algorithm.clip.zqz").any
