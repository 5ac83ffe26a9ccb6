import pytest

from dapo_lit.rewards.functions import RewardProblem, call_function, needed_memory_mb
from dapo_lit.rewards.signatures import load_function


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


def test_a_judge_is_loaded_as_a_worker_loads_it_and_its_odds_of_yes_are_the_value(judge, monkeypatch):
    monkeypatch.setenv("DAPO_LIT_JUDGE", str(judge))
    function = load_function("model_judge.reward")
    assert needed_memory_mb(function) == 32 * 1024
    scores = call_function(function, [RewardProblem("a", "?", "42")] * 2, ["42", "41"], None)
    assert [score.error for score in scores] == [None, None]
    assert all(0 < abs(score.value) <= 1 and score.correct == (score.value > 0) for score in scores)
