"""Supervised training: what is counted in the loss, and how batches are drawn and cut."""

import copy
from itertools import islice

import pytest
import torch
from tiny_policy import TINY
from transformers import PreTrainedModel

from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.pretrain import Example, accumulate_gradient, random_batches, train_supervised

TOKENIZER = character_tokenizer("abcdefgh")
ROWS = [
    Example([2, 3], [4, 1]),
    Example([5], [6, 7, 8, 1]),
    Example([2, 2, 2, 2], [9]),
    Example([3], [1]),
    Example([8, 7, 6], [5, 4, 3, 2]),
]
ARCHITECTURE = TINY | {"num_hidden_layers": 2, "intermediate_size": 32}


@pytest.fixture
def model() -> PreTrainedModel:
    return random_model(ARCHITECTURE, TOKENIZER, seed=0).double()


def slow_loss(model: PreTrainedModel, rows: list[Example]) -> float:
    """Mean over response tokens that no environment wrote, one row and one token at a time."""
    terms = []
    for prompt, response, observed in rows:
        for index, token in enumerate(response):
            if index in observed:
                continue
            before = torch.tensor([[*prompt, *response[:index]]])
            terms.append(-model(input_ids=before).logits[0, -1].log_softmax(-1)[token].item())
    return sum(terms) / len(terms)


def test_the_loss_is_the_mean_over_response_tokens_with_eos_and_without_prompts(model):
    assert accumulate_gradient(model, ROWS, 1) == pytest.approx(slow_loss(model, ROWS), rel=1e-6)


def test_what_an_environment_says_is_seen_and_has_no_loss_and_no_place_in_the_denominator(model):
    turns = Example([2, 3], [4, 5, 1, 6, 7, 8, 1], observed=[3, 4])
    rows = [*ROWS, turns, Example([9, 9], [4, 1, 7, 1], observed=[2])]
    assert accumulate_gradient(model, rows, 3) == pytest.approx(slow_loss(model, rows), rel=1e-6)
    only = [turns._replace(response=[4, 5, 1, *observation, 8, 1]) for observation in ([6, 7], [9, 2])]
    one, other = (accumulate_gradient(model, [row], 1) for row in only)
    assert one != pytest.approx(other, rel=1e-4)  # it is seen
    with pytest.raises(ValueError, match="at least one"):
        train_supervised(
            model, [Example([2], [3, 4], observed=[0, 1])], updates=1, batch_size=1, learning_rate=0, seed=0
        )


@pytest.mark.parametrize("micro_batches", [2, 3, 5, 9])
def test_any_number_of_micro_batches_gives_the_same_gradient(model, micro_batches):
    other = copy.deepcopy(model)
    loss = accumulate_gradient(model, ROWS, 1)
    assert accumulate_gradient(other, ROWS, micro_batches) == pytest.approx(loss, rel=1e-6)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-6)


def test_every_row_is_seen_once_before_any_is_seen_twice():
    rows = [Example([index], [1]) for index in range(10)]
    seen = [row.prompt[0] for batch in islice(random_batches(rows, 4, seed=0), 5) for row in batch]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
