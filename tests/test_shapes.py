"""Shapes in signatures: what they say is what calls have."""

from pathlib import Path

import pytest
import torch
from checked_shapes import checks
from command_line import run_cli
from jaxtyping import TypeCheckError, jaxtyped

from dapo_lit.objective.advantages import group_advantages, whiten
from dapo_lit.objective.losses import completion_mean
from dapo_lit.objective.tokens import Statistics, Tokens, merge

ROOT = Path(__file__).parents[1]
MODULE = "tests/lit/test_module.py"
WITH_SWITCHES, IN_TWO_PASSES = ("switches1", "switches3"), ("clip_cov", "top_entropy")
"""Overlong filtering, a critic, a loss of two kinds of tokens, a choice of tokens: the others call nothing else."""
CALLS = (
    "tests/objective",
    "tests/step/test_loss_mask.py",
    "tests/engines/test_inverse_cdf.py",
    "tests/policy/test_head.py::test_logits_are_the_hand_worked_ones",
    "tests/policy/test_head.py::test_fewer_tokens_than_a_chunk_give_the_same_bits_for_any_chunk_size",
    *(f"{MODULE}::test_the_gradient_of_a_mini_batch_is_the_same_for_any_micro_batch_size[{n}]" for n in WITH_SWITCHES),
    *(f"{MODULE}::test_two_passes_have_the_gradient_of_the_loss_of_all_tokens_at_once[{n}]" for n in IN_TWO_PASSES),
)
"""Tests that call the functions, from a single loss to whole updates."""


def test_the_shapes_in_signatures_are_those_of_real_calls():
    done = run_cli(*CALLS, cwd=ROOT, module="tests.checked_shapes")
    assert done.returncode == 0, done.stdout[-3000:]


ROWS, FLAT = torch.ones(2, 3), torch.ones(3)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (group_advantages, (FLAT,)),
        (group_advantages, (ROWS.long(),)),
        (whiten, (FLAT, ROWS[0, :2] > 0)),
        (completion_mean, (FLAT, FLAT)),
        (merge, (Statistics({}, {}), Statistics({"tokens": FLAT}, {}))),
    ],
)
def test_a_shape_or_a_dtype_other_than_the_annotations_is_seen(function, arguments):
    with pytest.raises(TypeCheckError):
        jaxtyped(function, typechecker=checks)(*arguments)


def test_nothing_is_checked_in_a_run():
    assert not hasattr(group_advantages, "__wrapped__")
    assert not hasattr(Tokens.__init__, "__wrapped__")
