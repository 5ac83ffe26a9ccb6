"""The answer transformation over a scripted model, and the command over a real one of a few characters."""

import json
import string

import pytest
from composition import tree_of
from papers_case import ORIGINAL, SECTIONS, STATEMENT, written
from scripted_engine import ScriptedEngine, ScriptedResponse

from dapo_lit.cli.config_tree import resolved
from dapo_lit.config import ConfigError, parse_as
from dapo_lit.config.transform import TransformConfig
from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems
from dapo_lit.engines.protocol import Sampling
from dapo_lit.engines.samples import SampleKey
from dapo_lit.policy.base import random_model
from dapo_lit.policy.save import save_policy
from dapo_lit.policy.tokenizer import character_tokenizer
from dapo_lit.preparation.transformation import REWRITING_STEP, Reject, Transformed, Transformer
from dapo_lit.rewards.pool import Verifier
from dapo_lit.transform import transform

TOKENIZER = character_tokenizer(string.printable[:95] + "\n")


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text)["input_ids"])


def transformer(rewritings: dict[str, list[str]], solutions: dict[str, list[str]], limit: int = 2000) -> Transformer:
    """Writes for each problem id the given rewritings and solutions, by sample index."""

    def script(key: SampleKey) -> ScriptedResponse:
        texts = (rewritings if key.step == REWRITING_STEP else solutions)[key.problem_id]
        response = (*ids(texts[key.sample_index]), TOKENIZER.eos_token_id)
        return ScriptedResponse(response, (0.0,) * len(response), ends_at=-key.sample_index)

    engine = ScriptedEngine(script)
    engine.sync_weights([], version=0)
    return Transformer(
        engine=engine,
        encode_rewriting=ids,
        encode_solving=ids,
        decode=lambda tokens: TOKENIZER.decode(list(tokens), skip_special_tokens=True),
        verifier=Verifier(rule="numeric", extraction="answer_line"),
        rewriting=Sampling(limit),
        solving=Sampling(limit),
        attempts=len(next(iter(rewritings.values()), [""])),
        solutions=len(next(iter(solutions.values()), [""])),
    )


def solved(*answers: str) -> list[str]:
    return [f"So it is.\nAnswer: {answer}" for answer in answers]


def test_the_papers_case_is_kept_when_the_majority_of_its_solutions_agrees():
    asked = transformer({"a": [written(*SECTIONS)]}, {"a": solved("19", "$19$", "18", "19")})
    (outcome,) = asked.transform([ORIGINAL])
    assert isinstance(outcome, Transformed)
    assert outcome.row() == {
        "id": "a",
        "problem": STATEMENT,
        "answer": "19",
        "rewritten": True,
        "original_problem": ORIGINAL.problem,
        "original_answer": ORIGINAL.answer,
        "answer_format": SECTIONS[0],
        "solution": SECTIONS[2],
        "num_solutions": 4,
        "num_agreeing": 3,
    }
    prompts = [TOKENIZER.decode(request.prompt_ids) for request in asked.engine.submitted]
    assert ORIGINAL.answer in prompts[0]
    assert prompts[1:] == [STATEMENT] * 4, "a solution sees only the rewritten problem"


def test_half_of_the_solutions_are_no_majority_and_the_reject_says_what_they_found():
    (outcome,) = transformer({"a": [written(*SECTIONS)]}, {"a": solved("19", "13", "19", "13")}).transform([ORIGINAL])
    assert isinstance(outcome, Reject)
    assert outcome.reason == "inconsistent"
    assert outcome.detail == "2 of 4 solutions give 19; found: 19 (2), 13 (2)"


def test_the_first_attempt_that_can_be_used_is_used_otherwise_the_fault_of_the_first_is_reported():
    asked = transformer({"a": ["no", written(*SECTIONS)]}, {"a": solved("19")})
    (outcome,) = asked.transform([ORIGINAL])
    assert isinstance(outcome, Transformed)
    asked = transformer({"a": ["no", written(*SECTIONS[:3], "k")]}, {})
    (outcome,) = asked.transform([ORIGINAL])
    assert isinstance(outcome, Reject)
    assert (outcome.reason, outcome.text) == ("malformed", "no")


def test_a_rewriting_that_was_cut_off_is_rejected():
    (outcome,) = transformer({"a": [written(*SECTIONS)]}, {}, limit=50).transform([ORIGINAL])
    assert isinstance(outcome, Reject)
    assert outcome.reason == "unfinished"


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_outcomes_come_in_the_order_of_the_problems_whatever_the_chunk_and_integers_pass_unasked(chunk):
    problems = [
        Problem("b", "What is 2 + 3?", "$5$"),
        ORIGINAL,
        Problem("c", "What is 1/2?", "0.5"),
        Problem("d", "-2?", "-2"),
    ]
    asked = transformer({"a": [written(*SECTIONS)], "c": ["?"]}, {"a": solved("19")})
    outcomes = list(asked.transform(problems, chunk))
    assert [outcome.original.id for outcome in outcomes] == ["b", "a", "c", "d"]
    assert [type(outcome) for outcome in outcomes] == [Transformed, Transformed, Reject, Transformed]
    assert (outcomes[0].row()["answer"], outcomes[0].row()["rewritten"], outcomes[3].row()["answer"]) == (
        "5",
        False,
        "-2",
    )
    assert {request.key.problem_id for request in asked.engine.submitted} == {"a", "c"}


def test_the_command_lists_what_it_keeps_and_rejects_goes_on_after_a_kill_and_refuses_other_settings(
    tmp_path, monkeypatch, capsys
):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = random_model({"model_type": "qwen2", **sizes, "num_key_value_heads": 1}, TOKENIZER, seed=0)
    save_policy(tmp_path / "model", model, TOKENIZER, {})
    (tmp_path / "rewrite.yaml").write_text('answer_format: none\ntext: "{problem}"\n')
    rows = [{"id": "half", "problem": "1/2?", "answer": "1/2"}, {"id": "five", "problem": "2+3?", "answer": "5"}]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    overrides = [
        "data=problems.jsonl", "policy.path=model", "rewriting_template=rewrite.yaml", "solving_template=dapo_base",
        "max_rewriting_tokens=20", "max_solution_tokens=20",
    ]  # fmt: skip
    config = parse_as(resolved(tree_of(overrides, "transform")), TransformConfig)
    transform(config, [])
    (kept,) = map(json.loads, (tmp_path / "transformed.jsonl").read_text().splitlines())
    (reject,) = map(json.loads, (tmp_path / "transformed.rejected.jsonl").read_text().splitlines())
    assert (kept["id"], kept["answer"]) == ("five", "5")
    assert (reject["id"], reject["answer"]) == ("half", "1/2")
    assert reject["reason"] in ("unfinished", "malformed")  # a random model's
    assert [p.answer for p in load_problems("transformed.jsonl")] == ["5"], "the output is a file of problems"
    assert "2 of 2 problems" in capsys.readouterr().err

    whole = (tmp_path / "transformed.rejected.jsonl").read_bytes()
    (tmp_path / "transformed.rejected.jsonl").write_bytes(whole[:20])  # a kill in the middle of the line
    transform(config, [])
    assert (tmp_path / "transformed.rejected.jsonl").read_bytes() == whole, "the same noise, the same outcome"
    assert len((tmp_path / "transformed.jsonl").read_text().splitlines()) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 problems are done" in printed
    assert "integer already" in printed
    with pytest.raises(ConfigError, match=r"transformed\.jsonl already exists, made with other settings \(attempts:"):
        transform(config.model_copy(update={"attempts": 5}), [])
    (tmp_path / "transformed.settings.json").unlink()
    with pytest.raises(ConfigError, match=r"without transformed\.settings\.json"):
        transform(config, [])
