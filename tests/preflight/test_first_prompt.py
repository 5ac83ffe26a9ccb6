"""The first prompt is shown as the policy reads it, and what a file has and the prompt has not is warned of."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tiny_policy import TINY
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from dapo_lit.build.components import RunComponents
from dapo_lit.config.commands import load_benchmark
from dapo_lit.data.sources import DataError
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import end_of_turn, save_policy
from dapo_lit.preflight.training import check_run

CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
NO_SYSTEM = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
PLAIN_END = CHATML.replace("<|end|>", "[/stop]")
NO_GENERATION = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
SYSTEM = {"role": "system", "content": "Use ####."}
Check = Callable[..., str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))) + "\n")
    tokenizer.add_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    save_policy(folder, random_model(TINY, tokenizer, 0), tokenizer, {})
    return folder


@pytest.fixture
def printed(compose, base, tmp_path, capsys) -> Check:
    def run(
        rows: list[dict],
        *overrides: str,
        chat: str = CHATML,
        bos: str = "",
        adds_bos: bool = False,
        appends: bool = False,
    ) -> str:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = [
            "task=file", f"task.path={tmp_path / 'rows.jsonl'}", "task.eval_path=null", "task.template=chat",
            "reward=number", "policy=hf", f"policy.path={base}", "task.max_prompt_tokens=100",
            "task.max_response_tokens=20", "algorithm.overlong.cache_tokens=5", "algorithm.optimizer.lr=1e-6",
        ]  # fmt: skip
        parts = RunComponents(compose(*settings, *(o.format(here=tmp_path) for o in overrides), small=False))
        parts.tokenizer.chat_template = chat
        if bos:
            parts.tokenizer.bos_token = bos
        if adds_bos:
            ids = [(bos, parts.tokenizer.bos_token_id)]
            parts.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=f"{bos} $A", special_tokens=ids
            )
        if appends:
            eos = parts.tokenizer.eos_token
            parts.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=f"$A {eos}", special_tokens=[(eos, parts.tokenizer.eos_token_id)]
            )
        with parts.verifier:
            check_run(parts)
        return capsys.readouterr().out

    return run


def row(*messages: dict) -> dict:
    return {"problem": [*messages, {"role": "user", "content": "2 + 3?"}], "answer": "5"}


def test_the_first_prompt_is_shown_with_its_special_tokens_its_reference_and_the_ends_of_a_response(printed):
    shown = printed([row(SYSTEM)])
    assert (
        "    the first, rows-0, as the policy reads it:\n"
        "    | <|start|>system\n    | Use ####.<|end|>\n    | <|start|>user\n    | 2 + 3?<|end|>\n"
        "    | <|start|>assistant\n    | [response]\n"
        "    a response ends with '<|endoftext|>' or '<|end|>', or at the limit; its reference answer is '5'\n"
    ) in shown
    assert "warning" not in shown


def test_of_a_long_prompt_the_start_and_the_end_are_shown(printed):
    long = {"problem": "\n".join("abcdefghijklmnopqrstuvwxyz"), "answer": "5"}
    shown = [line.strip() for line in printed([long]).splitlines() if line.startswith("    | ")]
    assert shown[:2] + shown[9:12] + shown[-3:] == [
        "| <|start|>user", "| a", "| i", "| [13 lines]", "| w", "| z<|end|>", "| <|start|>assistant", "| [response]",
    ]  # fmt: skip


def test_a_system_message_that_the_chat_template_drops_is_a_warning(printed):
    shown = printed([row(SYSTEM), {"problem": "4 + 4?", "answer": "8"}], chat=NO_SYSTEM)
    assert "warning: 1 of 2 prompts lack " in shown
    assert "correct chat_template" in shown


def test_worked_examples_that_a_row_replaces_are_a_warning(printed, tmp_path):
    (tmp_path / "shots.yaml").write_text(
        "answer_format: none\nmessages:\n  - {role: user, content: '1 + 1?'}\n  - {role: assistant, content: '2'}\n"
        "  - {role: user, content: '{problem}'}\n"
    )
    shots = "task.template={here}/shots.yaml"
    assert "1 of 1 problems have messages " in printed([row(SYSTEM)], shots)
    assert "warning" not in printed([row()], shots)


TWO_BOS = "warning: prompts start with two '<|start|>', which models are not trained on, one of them written by "


def test_two_bos_tokens_are_a_warning(printed):
    assert TWO_BOS + "the tokenizer's chat template" in printed([row()], chat="<|start|>" + CHATML, bos="<|start|>")
    assert TWO_BOS not in printed([row()], bos="<|start|>")


def test_a_text_template_whose_bos_the_tokenizer_writes_too_is_a_warning(printed, tmp_path):
    (tmp_path / "text.yaml").write_text('answer_format: none\ntext: "<|start|>{problem}"\n')
    texts = ("task.template={here}/text.yaml",)
    rows = [{"problem": "2 + 3?", "answer": "5"}]
    shown = printed(rows, *texts, bos="<|start|>", adds_bos=True)
    assert f"{TWO_BOS}task.template={tmp_path}/text.yaml; " in shown
    assert "| <|start|><|start|>2 + 3?[response]" in shown
    assert TWO_BOS not in printed(rows, *texts, bos="<|start|>")


@pytest.mark.parametrize(
    ("template", "chat", "appends", "named"),
    [
        ("answer_format: none\ntext: '{problem}'\n", CHATML, True, "the tokenizer; set add_eos_token=false in "),
        ("answer_format: none\ntext: '{problem}<|endoftext|>'\n", CHATML, False, "task.template={here}/own.yaml; "),
        ("answer_format: none\nmessages: [{role: user, content: '{problem}'}]\n", NO_GENERATION, False,
         "the tokenizer's chat template; correct "),
    ],
    ids=["tokenizer", "text", "chat"],
)  # fmt: skip
def test_a_prompt_that_ends_with_an_eos_token_is_a_warning(printed, tmp_path, template, chat, appends, named):
    (tmp_path / "own.yaml").write_text(template)
    shown = printed([{"problem": "2 + 3?", "answer": "5"}], "task.template={here}/own.yaml", chat=chat, appends=appends)
    end = "<|end|>" if "messages" in template else "<|endoftext|>"
    words = f"warning: prompts end with '{end}', which ends a response, so the policy is asked to go on after its end"
    assert f"{words}; it is written by {named.format(here=tmp_path)}" in shown


def test_an_end_of_turn_that_ends_no_response_is_a_warning(printed):
    shown = printed([row()], chat=PLAIN_END)
    assert "warning: the chat template closes an assistant's turn with '[/stop]'" in shown


@pytest.mark.parametrize(
    ("token", "found"),
    [
        (AddedToken("<|end|>", special=True), True),
        (AddedToken("<|end|>", special=False), True),
        (AddedToken("\n", special=False), False),  # a run of blanks closes nothing
    ],
)
def test_the_end_of_a_turn_is_found_wherever_a_tokenizer_has_it(token, found):
    tokenizer = character_tokenizer("abzq")
    tokenizer.add_tokens([token])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}" + token.content + "{% endfor %}"
    assert end_of_turn(tokenizer) == (tokenizer.convert_tokens_to_ids(token.content) if found else None)


def with_benchmark(here: Path, rows: str) -> str:
    """The override that adds a benchmark of these rows."""
    (here / "bench.jsonl").write_text(rows)
    settings = {"name": "sums", "path": str(here / "bench.jsonl"), "template": "chat", "extraction": "number"}
    benchmark = load_benchmark("gsm8k_test").model_copy(update=settings | {"max_response_tokens": 9})
    (here / "sums.yaml").write_text(yaml.safe_dump(benchmark.model_dump(mode="json")))
    return "evaluation.benchmarks=[{here}/sums.yaml]"


def test_the_prompts_of_held_out_problems_and_of_benchmarks_are_warned_of_by_name(printed, tmp_path):
    """What the tokenizer does to all of them is one line."""
    repeated = "".join(json.dumps({"problem": "9 + 9?", "answer": "18"}) + "\n" for _ in range(30))
    (tmp_path / "held.jsonl").write_text(repeated)
    overrides = ("task.eval_path={here}/held.jsonl", with_benchmark(tmp_path, repeated))
    lines = printed([row()], *overrides, chat=PLAIN_END).splitlines()
    of_all, held, bench = (line.removeprefix("    warning: ") for line in lines if "warning" in line)
    assert of_all.startswith("the chat template closes an assistant's turn with '[/stop]'")
    words = (
        "30 problems have only 1 distinct prompts; a repeated problem counts several times; delete the repeated rows of"
    )
    assert held == f"held-out problems: {words} task.eval_path, so that 1 stay"
    assert bench == f"evaluation.benchmarks: sums: {words} evaluation.benchmarks: sums, so that 1 stay"


def test_held_out_problems_and_benchmarks_that_the_tokenizer_cannot_express_are_refused_with_their_source(
    printed, tmp_path
):
    unread = json.dumps({"problem": "π + 1?", "answer": "5"}) + "\n"
    (tmp_path / "held.jsonl").write_text(unread)
    with pytest.raises(DataError, match=r"out of task\.eval_path"):
        printed([row()], "task.eval_path={here}/held.jsonl")
    with pytest.raises(DataError, match=r"out of evaluation\.benchmarks: sums"):
        printed([row()], with_benchmark(tmp_path, unread))
