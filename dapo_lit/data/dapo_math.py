"""Rows in the published schema of DAPO-Math-17k.

    prompt        [{"role": "user", "content": "Solve the following ...\\n\\n<statement>\\n\\nRemember to ..."}]
    reward_model  {"ground_truth": "34", "style": ...}
    extra_info    {"index": "9a9b6eb4-..."}

1.8 million rows are published: about 100 copies of each problem, every one with the prompt template around the
statement. Reading strips the template and removes duplicates (see duplicates.py). Other data in this schema, verl's
(say AIME with every problem 32 times), is read the same way; `extra_info` beyond the index goes to `meta`.
"""

from collections.abc import Iterable, Mapping

from dapo_lit.data.duplicates import DuplicateReport, deduplicate
from dapo_lit.data.fields import FieldChecks
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import BadRows, Row
from dapo_lit.data.templates import PromptTemplate


def is_published_schema(row: Row) -> bool:
    """Whether the columns are those of DAPO-Math-17k as published."""
    return "prompt" in row.fields and "reward_model" in row.fields


def published_problems(
    rows: Iterable[Row], checks: FieldChecks, bad_rows: BadRows
) -> tuple[list[Problem], DuplicateReport]:
    """The distinct problems of rows in the published schema, in order of first occurrence."""
    prefix, suffix = PromptTemplate.load("dapo").around_problem()
    seen: set[tuple[str, object]] = set()
    problems: list[Problem] = []
    num_good = num_without_template = 0
    for row in rows:
        with bad_rows:
            prompt = _user_message(row)
            ground_truth = _part(row, "reward_model").get("ground_truth")
            # Most rows end here: a repetition needs no further checks because its first occurrence passed them all.
            if isinstance(ground_truth, str | int | float) and (prompt, ground_truth) in seen:
                num_good += 1
                continue
            templated = prompt.startswith(prefix) and prompt.endswith(suffix)
            statement = prompt.removeprefix(prefix).removesuffix(suffix) if templated else prompt
            info = dict(_part(row, "extra_info")) if row.fields.get("extra_info") is not None else {}
            index = info.pop("index", None)
            problem = Problem(
                problem=checks.statement(row, "prompt", statement),
                answer=checks.answer(row, "reward_model.ground_truth", ground_truth),
                # A number is an index into this data set only; a text (DAPO's UUIDs) is unique by itself.
                id=checks.unique_id(row, f"{checks.name}-{index}" if isinstance(index, int) else index, len(problems)),
                meta={key: value for key, value in info.items() if value is not None},
            )
            problems.append(problem)
            seen.add((prompt, ground_truth))
            num_good += 1
            num_without_template += not templated
    kept, report = deduplicate(problems)
    report.num_repeated += num_good - len(problems)
    report.num_rows = num_good
    report.num_without_template = num_without_template
    return kept, report


def _user_message(row: Row) -> str:
    """The text of the last message, which must be the user's; a system message is not part of the problem."""
    prompt = row.fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        content = prompt[-1].get("content")
        if prompt[-1].get("role") == "user" and isinstance(content, str):
            return content
    raise row.error('`prompt` must be a list of chat messages that ends with {"role": "user", "content": "..."}')


def _part(row: Row, key: str) -> Mapping[str, object]:
    value = row.fields.get(key)
    if not isinstance(value, Mapping):
        raise row.error(f"`{key}` must be an object, as in DAPO-Math-17k (reward_model.ground_truth, extra_info.index)")
    return value
