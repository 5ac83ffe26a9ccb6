"""The scripts that prepare a policy or problems do what their pages show, on policies of a few thousand parameters."""

import json
import string
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import transform_answers
import warm_up
from scripted_engine import ScriptedEngine, ScriptedResponse
from transform_answers import HEADINGS, Transformer

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems
from dapo_lit.engines.protocol import SampleKey
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import load_model, load_tokenizer, save_policy
from dapo_lit.rewards.verifier import Verifier

TEMPLATE = Path(transform_answers.__file__).with_name("answer_transformation.yaml")
TOKENIZER = character_tokenizer(string.printable[:95] + "\n")
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}

# The case of the paper's appendix A: 11 - 2 sqrt(6) asked for as k + m + n = 11 + 2 + 6 = 19.
ORIGINAL = Problem("a", "Find the smallest possible value of $x.$", r"11 - 2 \sqrt{6}")
STATEMENT = r"The smallest possible value of $x$ is $k - m\sqrt{n},$ with $n$ square-free. Find $k + m + n.$"
SECTIONS = (r"$k - m\sqrt{n}$, ask for k + m + n.", STATEMENT, "(x - 11)^2 + (y - 8)^2 = 72, ... 19.", "19")


def written(*sections: str) -> str:
    return "Here it is.\n" + "\n".join(f"## {name}\n{text}" for name, text in zip(HEADINGS, sections, strict=True))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = random_model({"model_type": "qwen2", **SIZES, "num_key_value_heads": 1}, TOKENIZER, seed=0)
    save_policy(tmp_path / "model", made, TOKENIZER, {})
    return tmp_path / "model"


def outcome(rewritings: list[str], solutions: list[str], limit: int = 2000) -> dict:
    """What becomes of the paper's case under a model that writes these texts."""

    def script(key: SampleKey) -> ScriptedResponse:
        text = (solutions if key.step else rewritings)[key.sample_index]
        ids = (*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id)
        return ScriptedResponse(ids, (0.0,) * len(ids), ends_at=-key.sample_index)

    engine = ScriptedEngine(script)
    engine.sync_weights([], version=0)
    plain = str(Path(transform_answers.__file__).parents[2] / "dapo_lit/data/prompt_templates/plain.yaml")
    args = Namespace(
        attempts=len(rewritings), solutions=len(solutions), max_tokens=limit, seed=0, rewriting_template=plain,
        solving_template=plain,
    )  # fmt: skip
    with Verifier(rule="numeric", extraction="answer_line") as verifier:
        return Transformer(engine, TOKENIZER, verifier, args).outcome(ORIGINAL)


def test_the_papers_case_is_kept_when_the_majority_of_its_solutions_agrees():
    row = outcome(["no", written(*SECTIONS)], [f"So.\nAnswer: {a}" for a in ("19", "$19$", "18")])
    assert (row["problem"], row["answer"], row["original_answer"]) == (STATEMENT, "19", ORIGINAL.answer)


@pytest.mark.parametrize(
    ("rewriting", "answers", "limit", "reason"),
    [
        (written(*SECTIONS), ("19", "13"), 2000, "inconsistent"),
        (written(*SECTIONS), ("19",), 50, "unfinished"),
        ("I cannot.", ("19",), 2000, "malformed"),
        (written(*SECTIONS[:3], "k + m + n"), ("19",), 2000, "not_integer"),
        (written(SECTIONS[0], STATEMENT + r" It is $11-2\sqrt{6}$.", *SECTIONS[2:]), ("19",), 2000, "quotes_answer"),
    ],
)
def test_what_cannot_be_used_is_rejected_with_its_reason(rewriting, answers, limit, reason):
    assert outcome([rewriting], [f"Answer: {a}" for a in answers], limit)["reason"].partition(":")[0] == reason


def test_problems_are_transformed_from_the_command_line_and_a_second_run_goes_on(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rewrite.yaml").write_text('answer_format: none\ntext: "{problem}"\n')
    rows = [{"id": "half", "problem": "1/2?", "answer": "1/2"}, {"id": "five", "problem": "2+3?", "answer": "5"}]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["problems.jsonl", str(model), "out.jsonl", "--max-tokens", "20", "--solving-template", "dapo_base"]
    transform_answers.main([*command, "--rewriting-template", "rewrite.yaml"])
    assert [p.answer for p in load_problems("out.jsonl")] == ["5"], "the output is a file of problems"
    (reject,) = map(json.loads, Path("out.rejected.jsonl").read_text().splitlines())
    assert reject["id"] == "half"
    Path("out.jsonl").unlink()
    capsys.readouterr()
    transform_answers.main([*command, "--rewriting-template", "rewrite.yaml"])
    assert capsys.readouterr().out == "five 5\n"


def test_a_warm_policy_imitates_the_rows_that_agree_and_ends_where_they_end(model, tmp_path, capsys):
    sums = [(a, b) for a in range(1, 5) for b in range(1, 4)]
    rows = [(f"{a}+{b}=", f"#{a + b}") for a, b in sums] * 2 + [("9+9=", "#18"), ("9+9=", "#19")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in rows))
    command = [str(tmp_path / "rows.jsonl"), str(model), str(tmp_path / "warm"), "--template", "plain"]
    warm_up.main([*command, "--agree", "hash", "--epochs", "60", "--learning-rate", "0.01"])
    assert "rows: 26, kept: 24" in capsys.readouterr().out
    policy, tokenizer = load_model(tmp_path / "warm"), load_tokenizer(tmp_path / "warm")
    right = 0
    for a, b in sums:
        ids = torch.tensor([tokenizer(f"{a}+{b}=")["input_ids"]])
        made = policy.generate(ids, max_new_tokens=5, do_sample=False)
        right += tokenizer.decode(made[0, ids.shape[1] :]).startswith(f"#{a + b}{tokenizer.eos_token}")
    assert right >= 10
    with pytest.raises(SystemExit):
        warm_up.main(command)  # the folder is there
