import json
import subprocess
import sys

import pytest
import string_programs

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.pool import Reference, Verifier

PROGRAMS = "string_programs.reward"
JUDGE = "model_judge.reward"


@pytest.mark.parametrize(
    ("program", "text", "result"),
    [
        ("reverse", "abc", "cba"),
        ("drop 1; upper", "abc", "BC"),
        ("take 2; double", "abc", "abab"),
        ("rotate 1", "abc", "bca"),
        ("rotate 4", "abc", "bca"),
        ("sort; `", "cab", None),
        ("drop", "abc", None),
        ("reverse 2", "abc", None),
        ("__import__('os')", "abc", None),
        ("double; double; double; double; double; double; double", "abc", None),
        ("; ".join(["reverse"] * 9), "abc", None),
    ],
)
def test_a_program_does_its_steps_or_is_refused(program, text, result):
    if result is None:
        with pytest.raises(string_programs.ProgramError):
            string_programs.run(program, text)
    else:
        assert string_programs.run(program, text) == result


def test_any_program_that_is_right_on_the_hidden_pairs_too_is_right():
    problem = RewardProblem(
        "a", "", "reverse; reverse; upper", {"pairs": [["ab", "AB"], ["cd", "CD"], ["xyz", "XYZ"], ["q", "Q"]]}
    )
    texts = [
        "Answer: upper",
        "Answer: reverse; upper; reverse",
        "Answer: take 2; upper",
        "Answer: make it big",
        "upper",
    ]
    scores = string_programs.reward([problem] * len(texts), texts)
    assert [score.correct for score in scores] == [True, True, False, False, False]
    assert [score.value for score in scores] == [1.0, 1.0, -0.25, -1.0, -1.0]


def test_the_problems_are_solved_by_their_own_answers_in_a_worker():
    rows = string_programs.make_problems(20, seed=1)
    pairs = [
        (
            Reference(str(row["id"]), str(row["answer"]), str(row["problem"]), {"pairs": row["pairs"]}),
            f"Answer: {row['answer']}",
        )
        for row in rows
    ]
    with Verifier(rule="dapo", extraction="answer_line", function=PROGRAMS, workers=1) as verifier:
        assert all(score.correct for score in verifier.score(pairs))


def test_the_command_prints_rows_of_a_task():
    command = [sys.executable, string_programs.__file__, "3"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["string-0", "string-1", "string-2"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A tiny model with random weights and a tokenizer of words, in the Hugging Face layout."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("judge")
    words = ["[UNK]", "Yes", "No", "Question", "Response", "42", "41", "4", "2", ":", "?"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder


def test_a_model_adds_its_value_to_the_rule_and_leaves_correctness_alone(judge, monkeypatch):
    monkeypatch.setenv("DAPO_LIT_JUDGE", str(judge))
    settings = {"weights": {"correctness": 1.0, JUDGE: 0.2}, "workers": 1, "deadline_s": 60.0}
    with Verifier(rule="numeric", extraction="number", **settings) as verifier:
        right, wrong = verifier.score([(Reference("a", "42", "?"), "42"), (Reference("a", "42", "?"), "41")])
    assert right.correct
    assert not wrong.correct
    assert right.error is None
    assert 0 < abs(right.parts[JUDGE]) <= 0.2
    assert right.value == pytest.approx(1.0 + right.parts[JUDGE])


def test_a_judge_without_a_model_names_the_variable(monkeypatch):
    from model_judge import prepare

    monkeypatch.delenv("DAPO_LIT_JUDGE", raising=False)
    with pytest.raises(KeyError, match="DAPO_LIT_JUDGE"):
        prepare()
