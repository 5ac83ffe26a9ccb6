"""What the policy would read, found wrong before the first step: templates that lose the problem, labels, leakage."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_policy import TINY

from ablations.errors import UserError
from dapo_lit import chat_template
from dapo_lit.build.components import RunComponents
from dapo_lit.data.problem import Problem
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import save_policy
from dapo_lit.preflight.problems import check_labels
from dapo_lit.preflight.training import check_run

CHAT = (
    "{% for m in messages %}<{{m.role}}>{{m.content}}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
LONG = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}"
"""Seconds, after which the thread that the check leaves behind ends."""
SUMS = [{"id": f"{a}+{b}", "problem": f"{a}+{b}", "answer": str(a + b)} for a in range(2, 8) for b in range(1, 6)]
Check = Callable[..., str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))) + "\n")
    save_policy(folder, random_model(TINY, tokenizer, 0), tokenizer, {})
    return folder


@pytest.fixture
def checked(compose, base, tmp_path, capsys) -> Check:
    """Runs the checks on rows and a chat template; returns what was printed."""

    def run(rows: list[dict], *overrides: str, chat: str = CHAT) -> str:
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        settings = [
            "task=file", f"task.path={file}", "task.eval_path=null", "task.template=chat", "reward=number",
            "policy=hf", f"policy.path={base}", "task.max_prompt_tokens=60", "task.max_response_tokens=20",
            "algorithm.overlong.cache_tokens=5", "algorithm.optimizer.lr=1e-6",
        ]  # fmt: skip
        parts = RunComponents(compose(*settings, *(o.format(file=file) for o in overrides), small=False))
        parts.tokenizer.chat_template = chat
        with parts.verifier:
            check_run(parts)
        return capsys.readouterr().out

    return run


def test_a_fit_setup_has_a_fact_in_every_row_and_no_warning(checked):
    printed = checked(SUMS)
    assert "30 distinct prompts of " in printed
    assert "warning" not in printed


@pytest.mark.parametrize(
    ("rows", "overrides", "chat", "named"),
    [
        (SUMS, [], "<user>Solve it.<assistant>", "30 of 30 prompts"),
        (SUMS, [], "{% for m in messages %}{{m.content[:1]}}{% endfor %}=", "30 of 30 prompts"),
        (SUMS, [], "{{ ''.__class__.__mro__ }}", "unsafe"),
        (SUMS, [], "{{ raise_exception('no system\nmessage') }}", "no system message"),
        (SUMS, [], LONG, "has not ended"),
        ([*SUMS[:9], SUMS[0] | {"id": "twice", "answer": "4"}], [], CHAT, "task.deduplicate=true"),
        (SUMS, ["task.eval_path={file}"], CHAT, "task.eval_path"),
        (SUMS, ["task.max_prompt_tokens=200"], CHAT, "context"),
    ],
    ids=["drops", "cuts", "sandbox", "raises", "endless", "labels", "leakage", "context"],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(checked, monkeypatch, rows, overrides, chat, named):
    monkeypatch.setattr(chat_template, "RENDER_S", 0.2)
    with pytest.raises(UserError) as refused:
        checked(rows, *overrides, chat=chat)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_equal_rows_are_one_warning(checked):
    rows = [SUMS[0] | {"id": str(i)} for i in range(30)]
    (warning,) = (line for line in checked(rows).splitlines() if "warning" in line)
    assert re.search(r"30 problems .* 1 distinct .*task\.deduplicate=true keeps 1 ", warning)


def test_prompts_that_are_equal_though_their_rows_are_not_are_no_duplicates(checked):
    systems = [[{"role": "system", "content": str(n)}, {"role": "user", "content": "2+3"}] for n in range(30)]
    chat = CHAT.replace("in messages", "in messages if m.role == 'user'")
    printed = checked([{"problem": messages, "answer": "5"} for messages in systems], chat=chat)
    assert "30 problems have only 1 distinct prompts; their rows differ in what the prompt does not show" in printed


def problems(*answers: str, texts: str = "aaaaaaaaaa") -> list[Problem]:
    return [Problem(str(i), text, answer) for i, (text, answer) in enumerate(zip(texts, answers, strict=False))]


def test_labels_are_compared_under_the_rule_and_a_few_contradictions_are_a_warning():
    def numbers(pairs):
        return [float(a) == float(b) for a, b in pairs]

    assert check_labels(problems("5", "5.0", "5"), numbers) == ()
    assert "2 of 2" in check_labels(problems("5", "6"), None)[0]  # a reward function judges
    with pytest.raises(UserError, match="2 of 2"):
        check_labels(problems("5", "6"), numbers)
    many = [Problem(f"o{i}", f"other {i}", "1") for i in range(98)]
    (warning,) = check_labels([*problems("5", "6"), *many], numbers)
    assert "2 of 100" in warning
    assert warning.endswith("keeps 98 of 100 rows")
    chats = [Problem("a", "yes", "1"), Problem("b", "yes", "2", before=({"role": "user", "content": "2?"},))]
    assert check_labels(chats, numbers) == ()  # other conversations
