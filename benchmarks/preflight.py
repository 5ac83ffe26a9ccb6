r"""Processor time of the checks before the first step, row by row, on problems of real data sets.

The policy is tiny and its tokenizer a byte-level BPE that is trained here on the same problems, so what is measured are
the checks of problems, prompts, references and rewards, with their worker processes; not a large model's. Reading and
encoding, which a run does without the checks as well, are timed apart.

    OMP_NUM_THREADS=1 python benchmarks/preflight.py --data $DAPO_LIT_DATA
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dapo_lit.build.components import RunComponents
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse
from dapo_lit.policy.base import random_model
from dapo_lit.policy.load import save_policy
from dapo_lit.preflight import table, training
from dapo_lit.runs.run_folder import processor

STAGES = ("read", "encoded", "checked")
SETS = ("math_train", "gsm8k_train", "dapo_math_17k")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY = {
    "model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 16, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip


def processor_s() -> float:
    """Seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bytes_alone = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=special, initial_alphabet=bytes_alone)
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=special[2], pad_token=special[0], chat_template=CHAT
    )


def measured(*overrides: str) -> dict[str, float]:
    """Seconds of each row of the table, and of the stages."""
    seconds: dict[str, float] = {}

    def timed(checks: Mapping[str, Callable[[], table.Finding]]) -> None:
        for name, check in checks.items():
            started = processor_s()
            found = check()
            seconds[name] = processor_s() - started
            print(f"{seconds[name]:8.3f} s  {name:<12}{found.words}", *found.warnings, sep="\n    ", flush=True)

    parts = RunComponents(parse(resolved(composed_tree(overrides))))
    parts.policy, parts.tokenizer  # noqa: B018
    # What a run does without the checks as well.
    for name, needed in (("read", lambda: parts.problems), ("encoded", lambda: parts.train_prompts)):
        started = processor_s()
        needed()
        seconds[name] = processor_s() - started
    training.run_checks = timed  # type: ignore[assignment]
    started = processor_s()
    training.check_run(parts)
    parts.verifier.close()  # waits for the workers, whose time counts
    seconds["checked"] = processor_s() - started
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that DAPO_LIT_DATA names")
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="a JSON file for the seconds")
    parser.add_argument("--set", action="append", default=[], help="key=value of the config")
    options = parser.parse_args()
    sets = [file for name in SETS if (file := options.data / f"{name}.jsonl").exists()]
    lines = (line for file in sets for line in file.open(encoding="utf-8"))
    rows = [json.loads(line) for line in islice(lines, options.problems)]
    with tempfile.TemporaryDirectory() as folder:
        policy, file = Path(folder) / "policy", Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        tokenizer = tokenizer_of([row["problem"] for row in rows])
        save_policy(policy, random_model(TINY, tokenizer, 0), tokenizer, {})
        seconds = measured(
            "task=file", f"task.path={file}", "task.eval_path=null", "task.template=dapo", "reward=math",
            "policy=hf", f"policy.path={policy}", "task.max_prompt_tokens=1024", "task.max_response_tokens=1024",
            "algorithm.overlong.cache_tokens=205", "algorithm.optimizer.lr=1e-6", *options.set,
        )  # fmt: skip
    print(f"{len(rows):,} problems, seconds of processor time:", *(f"{k} {seconds[k]:.2f}" for k in STAGES))
    if options.out:
        found = {
            "command": " ".join(["python", "benchmarks/preflight.py", "--data", "$DAPO_LIT_DATA"]),
            "machine": processor(),
            "problems": len(rows),
            "processor_s": {name: round(value, 2) for name, value in seconds.items()},
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
