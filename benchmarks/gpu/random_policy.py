"""A policy of Qwen2.5's shape with random weights, a tokenizer of its size, and problems: a whole step without a hub.

Random weights choose among all tokens, and one of LIMIT_TOKENS ends a response: lengths are geometric up to the limit,
so that the shapes of batches change from step to step as a trained policy's do.
The tokenizer is byte-level with the merges of the problems; its other tokens are names that no text has.
"""

import json
import random
import sys
from pathlib import Path

import torch
from part import DEVICE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from whole_step import LIMIT_TOKENS

from dapo_lit.forecast.architecture import qwen2_5
from dapo_lit.policy.load import save_policy

END = "<|endoftext|>"
TINY = {
    "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
}  # fmt: skip
LAST = "problems.jsonl"
"""Written when all else is there."""
NAMES, THINGS = ("Ada", "Ben", "Chen", "Dara", "Ede", "Finn"), ("apples", "coins", "stamps", "books")


def problems(number: int) -> list[dict[str, str]]:
    """Problems of about the length of GSM8K's, all different."""
    draw, found = random.Random(0), []
    for index in range(number):
        who, other = draw.sample(NAMES, 2)
        things, (a, b, c) = draw.choice(THINGS), (draw.randint(10, 999) for _ in range(3))
        text = (
            f"{who} has {a} {things} in a box and buys {b} more at the market on Monday. On Tuesday {other} brings "
            f"{c} {things}, and they put all of them into the same box. How many {things} are in the box then?"
        )
        found.append({"id": f"box-{index}", "problem": text, "answer": str(a + b + c)})
    return found


def tokenizer_of(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `size` tokens, the last of which ends a response."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=min(900, size - 1), initial_alphabet=alphabet, show_progress=False)
    )
    known = json.loads(learned.to_str())["model"]
    vocabulary = dict(known["vocab"])
    while len(vocabulary) < size - 1:
        vocabulary[f"unused{len(vocabulary)}"] = len(vocabulary)
    merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in known["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = learned.pre_tokenizer, decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def write(folder: Path, size: str, dtype: str, number: int = 256) -> Path:
    """Writes `folder`/policy and `folder`/problems.jsonl; size: of Qwen2.5, or tiny."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = problems(number)
    sizes = dict(TINY) if size == "tiny" else qwen2_5(size)
    tokenizer = tokenizer_of([row["problem"] for row in rows], sizes["vocab_size"])
    torch.manual_seed(0)
    with torch.device(DEVICE):  # seconds on a GPU, minutes on a CPU for 7B
        config = AutoConfig.for_model(**sizes, eos_token_id=tokenizer.eos_token_id)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    # The last ones, which no problem has.
    ends = max(1, sizes["vocab_size"] // LIMIT_TOKENS)
    last = range(sizes["vocab_size"] - ends, sizes["vocab_size"])
    model.generation_config = GenerationConfig(eos_token_id=sorted({tokenizer.eos_token_id, *last}))
    save_policy(folder / "policy", model, tokenizer, {})
    (folder / "held_out.jsonl").write_text(json.dumps(problems(number + 1)[-1]) + "\n", encoding="utf-8")
    (folder / LAST).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
