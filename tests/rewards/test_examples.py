import pytest

from dapo_lit.rewards.verifier import Reference, Verifier

JUDGE = "model_judge.reward"


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
