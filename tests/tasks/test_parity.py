"""Parity: problems that no demonstration shows, right chains, and the share of long chains in a base policy."""

import itertools
from collections.abc import Callable

import pytest

from dapo_lit.build.base_policy import base_stages
from dapo_lit.config import Config, ConfigError
from dapo_lit.tasks.parity import Mixture, Strings, has_written_steps, problems


def test_training_problems_and_demonstrations_contain_no_held_out_string():
    train, heldout = (problems(kind, 200, Strings()) for kind in ("train", "held_out"))
    assert not {p.problem for p in train} & {p.problem for p in heldout}
    shown = [d.prompt for d in itertools.islice(Mixture(chains=0.5).stream(0), 500)]
    assert not {p.problem for p in heldout} & set(shown)
    assert all(len(p.problem) in range(17, 30, 2) and p.answer == str(p.problem.count("1") % 2) for p in train)
    with pytest.raises(ValueError, match="max_bits"):
        Strings(8, 27)
    with pytest.raises(ValueError, match="300 "):
        problems("train", 300, Strings(4, 6))


def test_chains_come_in_their_share_and_are_right_unless_a_step_is_wrong():
    found = list(itertools.islice(Mixture(chains=0.3).stream(1), 2000))
    chains = [d for d in found if has_written_steps(d.response)]
    assert len(chains) / len(found) == pytest.approx(0.3, abs=0.03)
    assert all(d.response.rpartition("#")[2] == str(d.prompt.count("1") % 2) for d in found)
    assert all(len(d.response) == (len(d.prompt) - 1) // 2 * 3 + 2 for d in chains)
    wrong = list(itertools.islice(Mixture(chains=1.0, step_wrong=0.1).stream(1), 500))
    right = sum(d.response.rpartition("#")[2] == str(d.prompt.count("1") % 2) for d in wrong)
    assert 0.48 < right / 500 < 0.62  # an even number of 8 to 14 steps is wrong: (1 + 0.8^11) / 2 = 0.54


@pytest.mark.parametrize("task", ["parity", "chain_sum_rare"])
def test_the_share_of_long_chains_of_a_base_is_that_of_its_last_stage(compose: Callable[..., Config], task: str):
    config = compose(f"task={task}", "+task.base.long_chains=0.16", small=False)
    first, last = base_stages(config.task)
    assert base_stages(compose(f"task={task}", small=False).task)[0] == first
    found = list(itertools.islice(last.demonstrations.stream(0), 2000))
    assert sum(len(d.response) > 8 for d in found) / 2000 == pytest.approx(0.16, abs=0.03)
    wrong = compose(f"task={task}", "+task.base.long_chains=1.6", small=False)
    with pytest.raises(ConfigError, match="share"):
        base_stages(wrong.task)
