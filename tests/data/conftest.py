"""Fixtures of the data tests: real tokenizers small enough to train on the spot, and files to read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def base_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a BOS token in front, as a base model's: no chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["What is the sum of 12 and 30? The answer is 42."], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>")


@pytest.fixture(scope="session")
def chat_tokenizer(base_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same vocabulary with a ChatML template and no BOS token, as Qwen's and SmolLM's."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base_tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.fixture(scope="session")
def dapo_math(data_file) -> list[Problem]:
    """The 17,917 distinct rows of DAPO-Math-17k, duplicates and conflicts among them marked in `meta`."""
    return load_problems(str(data_file("dapo_math_17k.jsonl")))


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows (dicts, or lines as they stand) to a file and returns its path."""

    def write(*rows: dict | str, name: str = "rows.jsonl") -> str:
        file = tmp_path / name
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return str(file)

    return write
