"""The problems of a run are found or refused in one clear message, and bad rows are skipped only when asked for."""

import json

import pytest

from dapo_lit.build.problem_sets import problems
from dapo_lit.config import ConfigError
from dapo_lit.data.sources import DataError


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


def test_task_skip_bad_rows_lets_a_share_of_the_training_rows_through(compose, tmp_path):
    rows = [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(9)] + [{"problem": "9 + 1?"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    overrides = [f"task.path={tmp_path / 'rows.jsonl'}", "task.eval_path=null", "task.template=plain", "reward=math"]
    with pytest.raises(DataError, match=r"(?s)line 10: .*`answer`.*1 of 10.*task.skip_bad_rows"):
        problems(compose("task=gsm8k", *overrides, small=False))
    found = problems(compose("task=gsm8k", *overrides, "task.skip_bad_rows=0.1", small=False))
    assert len(found.train) == 9
    assert found.selection.counts == {"bad_rows": 1}
