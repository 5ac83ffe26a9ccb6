"""DAPO-Math-17k in its published schema, and duplicates among the problems of any source.

Published are 1.8 million rows, the same ones about 100 times over, each with the prompt template around the statement:

    prompt        [{"role": "user", "content": "Solve the following ...\\n\\n<statement>\\n\\nRemember to ..."}]
    reward_model  {"ground_truth": "34", "style": ...}
    extra_info    {"index": "9a9b6eb4-..."}

Reading strips the template, keeps each statement once, and drops statements that are given with different answers:
which one is right is unknown, and a wrong reference rewards wrong answers. Other data in this schema (that of verl,
say AIME with every problem 32 times) is read the same way; `extra_info` beyond the index goes to `meta`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dapo_lit.data.fields import FieldChecks
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import Row
from dapo_lit.data.templates import PromptTemplate


@dataclass
class DuplicateReport:
    """What became of the rows of a data set. Counts of rows; ids of problems."""

    num_rows: int
    num_repeated: int
    """Rows that repeat an earlier one, statement and answer, to the letter."""
    num_kept: int
    restated: list[tuple[str, str]] = field(default_factory=list)
    """(id kept, id dropped): the same statement up to blanks and case, with the same answer."""
    conflicts: list[list[tuple[str, str]]] = field(default_factory=list)
    """Each a list of (id, answer) that share a statement and not the answer; all of them are dropped."""
    num_without_template: int = 0
    """Distinct rows of the published schema whose prompt was not DAPO's; the whole prompt is the statement."""

    def __str__(self) -> str:
        parts = [
            f"{self.num_rows:,} rows, {self.num_kept:,} problems kept",
            f"{self.num_repeated:,} exact repetitions",
            f"{len(self.restated):,} restated (blanks or case differ)",
            f"{sum(map(len, self.conflicts)):,} dropped: {len(self.conflicts):,} statements with conflicting answers",
        ]
        if self.num_without_template:
            parts.append(f"{self.num_without_template:,} prompts without DAPO's template, taken whole")
        return "; ".join(parts)


def is_published_schema(row: Row) -> bool:
    """Whether the columns are those of DAPO-Math-17k as published."""
    return "prompt" in row.fields and "reward_model" in row.fields


def published_problems(rows: Iterable[Row], checks: FieldChecks) -> tuple[list[Problem], DuplicateReport]:
    """The distinct problems of rows in the published schema, in order of first occurrence.

    Raises DataError naming file and row where `prompt` or `reward_model.ground_truth` is not of that schema.
    """
    prefix, suffix = PromptTemplate.load("dapo").around_problem()
    seen: set[tuple[str, object]] = set()
    problems: list[Problem] = []
    num_rows = num_without_template = 0
    for row in rows:
        num_rows += 1
        prompt = _user_message(row)
        ground_truth = _part(row, "reward_model").get("ground_truth")
        # Most rows end here: a repetition needs no further check, its first occurrence had them all.
        if isinstance(ground_truth, str | int | float) and (prompt, ground_truth) in seen:
            continue
        answer = checks.answer(row, "reward_model.ground_truth", ground_truth)
        seen.add((prompt, ground_truth))
        templated = prompt.startswith(prefix) and prompt.endswith(suffix)
        num_without_template += not templated
        statement = prompt.removeprefix(prefix).removesuffix(suffix) if templated else prompt
        info = dict(_part(row, "extra_info")) if row.fields.get("extra_info") is not None else {}
        index = info.pop("index", None)
        problems.append(
            Problem(
                # A number is an index into this data set alone; a text (DAPO's are UUIDs) identifies by itself.
                id=checks.unique_id(row, f"{checks.name}-{index}" if isinstance(index, int) else index, len(problems)),
                problem=checks.statement(row, "prompt", statement),
                answer=answer,
                meta={key: value for key, value in info.items() if value is not None},
            )
        )
    kept, report = deduplicate(problems)
    report.num_repeated += num_rows - len(problems)
    report.num_rows = num_rows
    report.num_without_template = num_without_template
    return kept, report


def deduplicate(problems: Sequence[Problem]) -> tuple[list[Problem], DuplicateReport]:
    """Each statement once, the first of its kind, and none that is given with different answers.

    Two statements are the same if they differ in blanks and case alone; punctuation and signs tell statements apart.
    """
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(_canonical(problem.problem), []).append(problem)
    report = DuplicateReport(num_rows=len(problems), num_repeated=0, num_kept=0)
    kept: list[Problem] = []
    for group in groups.values():
        first = group[0]
        if len({problem.answer.strip() for problem in group}) > 1:
            report.conflicts.append([(problem.id, problem.answer) for problem in group])
            continue
        kept.append(first)
        wordings = {first.problem}
        for problem in group[1:]:
            if problem.problem in wordings:
                report.num_repeated += 1
            else:
                report.restated.append((first.id, problem.id))
                wordings.add(problem.problem)
    report.num_kept = len(kept)
    return kept, report


def _canonical(statement: str) -> str:
    return "".join(statement.split()).lower()


def _user_message(row: Row) -> str:
    """The text of the one user message; a system message before it is not part of the problem."""
    prompt = row.fields["prompt"]
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
