"""Every reference answer scores itself before the first step: what no response matches is counted, quoted, refused."""

import json
import re
import time
from collections.abc import Callable

import pytest

from dapo_lit.build.components import RunComponents
from dapo_lit.data.problem import Problem
from dapo_lit.data.rows import DataError
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.engines.protocol import token_ids
from dapo_lit.preflight.problems import check_references, unseen_columns
from dapo_lit.preflight.prompts import _two_forms
from dapo_lit.preflight.training import check_run
from dapo_lit.rewards.references import other_reading, unreachable
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.records import Prompt

SOLUTION = "3 + 4 = 7, so there are\nseven of them. #### 7"


@pytest.mark.parametrize(
    ("rule", "extraction", "reference", "read"),
    [
        ("sympy", "answer_line", SOLUTION, "3 + 4 = 7, so there are"),
        ("dapo", "answer_line", SOLUTION, "3 + 4 = 7, so there are"),
        ("sympy", "boxed", SOLUTION, "7"),  # the box holds all of it, but a response would box 7
        ("sympy", "answer_line", r"3 red and 4 blue, \boxed{7}", "7"),
        ("sympy", "answer_line", "x" * 301, None),  # the marker is out of sight
        ("numeric", "number", "3 or 4", None),
        ("sympy", "hash", "a # b", "b"),
    ],
)
def test_references_that_no_response_can_match_are_found_with_what_is_read(rule, extraction, reference, read):
    (lost,) = unreachable(["7", reference], rule, extraction)
    assert (lost.index, lost.read) == (1, read)


@pytest.mark.parametrize("extraction", ["answer_line", "boxed", "hash", "auto"])
@pytest.mark.parametrize(
    "reference", ["7", r"\frac{1}{2}", "(1, 2)", r"$\sqrt{2}$", r"\boxed{7}", "x = 5", "9 (apples)"]
)
def test_an_answer_is_its_own_answer(extraction, reference):
    assert unreachable([reference], "sympy", extraction) == []


def test_auto_reads_a_solution_so_its_reference_may_be_one():
    assert unreachable([SOLUTION, r"So it is \boxed{7}."], "sympy", "auto") == []


@pytest.mark.parametrize(
    ("references", "found"),
    [
        ([SOLUTION, SOLUTION, "many\nwords"], ("what follows its last ####", 2, 3)),
        ([r"So it is \boxed{7}.", "many\nwords"], ("its last box", 1, 2)),
        (["They have\n5", "They have\n(3, 4)"], ("its last number", 2, 2)),
        (["many\nwords"], None),
    ],
)
def test_the_reading_that_would_be_right_is_named(references, found):
    assert other_reading(references, "numeric", "answer_line") == found


def problems(*answers: str) -> list[Problem]:
    return [Problem(f"p{i}", "?", answer) for i, answer in enumerate(answers)]


def test_above_half_is_refused_above_one_percent_warned_and_fewer_are_shown():
    with Verifier(rule="sympy", extraction="answer_line") as verifier:
        with pytest.raises(DataError, match=r"task.path: 3 of 4 .*\(75.0%\).*p0: .*p1: .*p2: .*last ####.*3 of 3"):
            check_references(verifier, problems(*[SOLUTION] * 3, "7"), "task.path")
        found = check_references(verifier, problems(*[SOLUTION] * 2, *["7"] * 98), "task.path")
        assert (found.words, len(found.warnings), found.shown) == ("98 of 100 reference answers", 1, ())
        assert "'3 + 4 = 7, so there are" in found.warnings[0]
        few = check_references(verifier, problems(SOLUTION, *["7"] * 199), "task.path")
        assert (few.words, few.warnings, len(few.shown)) == ("199 of 200 reference answers", (), 1)


def test_workers_decide_what_form_and_fractions_do_not_and_no_more_than_a_few_hundred():
    asked: list[tuple[str, str]] = []

    def equivalent(pairs):
        asked.extend(pairs)
        return [False] * len(pairs)

    surds = [rf"{n}\sqrt{{8}} = \boxed{{{2 * n}\sqrt{{2}}}}" for n in range(1, 301)]
    assert len(unreachable(surds, "sympy", "boxed", equivalent)) == len(asked) == 256


def test_ten_thousand_references_take_a_fraction_of_a_second():
    started = time.thread_time()  # of this thread: others of the process may still end
    assert len(unreachable([str(n) if n % 2 else SOLUTION for n in range(10_000)], "sympy", "answer_line")) == 5_000
    assert time.thread_time() - started < 1.0


@pytest.fixture
def printed(compose, tmp_path, capsys) -> Callable[..., str]:
    """What the checks of a run on these rows print."""

    def run(rows: list[dict], *overrides: str) -> str:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "bare.yaml").write_text('answer_format: none\ntext: "{problem}"\n')
        settings = (
            "task.name=file", f"task.path={tmp_path / 'rows.jsonl'}", "task.eval_path=null", "task.label=own",
            f"task.template={tmp_path / 'bare.yaml'}",
        )  # fmt: skip
        parts = RunComponents(compose(f"policy.path={RunComponents(compose()).policy_folder}", *settings, *overrides))
        with parts.verifier:
            check_run(parts)
        return capsys.readouterr().out

    return run


def rows(*answers: str) -> list[dict]:
    return [{"problem": f"{n}+1=", "answer": answer} for n, answer in enumerate(answers)]


def test_all_references_are_tried_before_a_run_not_the_first_sixteen(printed):
    table = printed(rows(*map(str, range(30)), "3\nor 4"), "reward.rule=sympy", "reward.extraction=answer_line")
    assert "30 of 31 reference answers" in table
    assert "warning: task.path: 1 of 31 " in table
    assert r"rows-30: '3\nor 4' is read as '3'" in table


def test_held_out_references_are_tried_too(printed, tmp_path):
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows("3\nor 4")))
    settings = ("reward.rule=sympy", "reward.extraction=answer_line", f"task.eval_path={tmp_path / 'held.jsonl'}")
    with pytest.raises(DataError, match=r"task.eval_path: 1 of 1"):
        printed([{"problem": f"9+{n}=", "answer": str(n)} for n in range(4)], *settings)


def test_a_rule_that_cannot_read_the_answers_is_refused_with_the_reading_that_it_can(printed):
    with pytest.raises(DataError, match=r"is not a number.*last number .* 2 of 2"):
        printed(rows("7 so (seven)", "8 so (eight)"), "reward.rule=numeric", "reward.extraction=number")


def test_columns_of_text_that_reach_neither_prompt_nor_reference_are_named():
    meta = [
        {"source": "mine", "choices": ["1", letter], "context": f"A {letter}.", "same": "2 + 3?", "level": "4", "n": 3}
        for letter in "ab"
    ]
    found = unseen_columns([Problem(str(n), "2 + 3?", "5", each) for n, each in enumerate(meta)])
    assert [one.partition(": ")[2] for one in found] == ["choices, context"]
    assert unseen_columns(problems("1", "2")) == ()


def test_the_columns_are_named_on_the_screen(printed):
    named = [row | {"hint": f"like {n}"} for n, row in enumerate(rows("1", "2"))]
    assert re.search(r"^    columns .*: hint$", printed(named), re.MULTILINE)


def test_columns_that_make_problems_differ_are_named_before_their_contradictions(printed):
    bodies = [{"problem": "2+2=", "answer": str(n), "body": f"Ann has {n} apples."} for n in range(3)]
    with pytest.raises(DataError, match=r"^columns .*: body .*different answers"):
        printed(bodies)


@pytest.mark.parametrize(
    ("reference", "content"),
    [
        ('["5"]', "5"),
        ("<answer>5</answer>", None),
        (r"so \boxed{5}", None),
        ("[5]", None),
        ('["5", "6"]', None),
        ("5", None),
    ],
)
def test_a_form_around_a_reference_is_found_where_a_right_response_gives_its_content(reference, content):
    lost = unreachable([reference], "sympy", "auto")
    assert [each.read for each in lost] == ([content] if content else [])


def test_prompts_that_ask_for_two_forms_are_warned_of():
    template = PromptTemplate(
        "both", "answer_line", messages=({"role": "user", "content": "{problem} End: Answer: x"},)
    )
    asking = [Prompt(Problem(str(n), rf"{n}+1? Write \boxed{{}}.", "5"), token_ids([2])) for n in range(3)]
    (warning,) = _two_forms(asking, template, "task.template")
    assert re.match(r'3 of 3 prompts .*"Answer: \.\.\." and \\boxed\{\}', warning)
    bare = [Prompt(Problem("a", "1+1?", "2"), token_ids([2]))]
    assert _two_forms(bare, template, "task.template") == []
