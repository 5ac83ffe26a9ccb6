"""Options that do not fit a generated task are refused in one clear message."""

import pytest

from dapo_lit.build.problem_sets import problems
from dapo_lit.config import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["task.options.max_terms=4"],
            r"task.options \(.*max_terms=4.*\): 4,096 training.*at most 3,685.*raise max_terms",
        ),
        (["task.options.max_terms=1"], r"task.options \(.*max_terms=1.*\): a sum needs 2 <= min_terms <= max_terms"),
        (["+task.options.max_term=4"], r"task.options \(.*\): .*unexpected keyword argument 'max_term'"),
        (["task.options.max_terms=2", "task.num_problems=20"], r"task.options \(.*\): 200 held-out problems"),
    ],
)
def test_options_that_do_not_fit_the_task_are_named_with_what_to_change(compose, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        problems(compose("task=chain_sum", *overrides, small=False))
    assert "\n" not in str(caught.value)
