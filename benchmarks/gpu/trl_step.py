"""Steps of TRL's GRPOTrainer with vLLM in its process: python trl_step.py FOLDER [--tiny | --prompts N].

FOLDER is one of random_policy.py. The same sizes as the whole step of campaign.py: N prompts x 16 completions of 512
tokens at most, an update for every 16 prompts, DAPO's loss with both bounds, no KL term, a coin flip for a reward.
trl.json is written after each step, so that a run that is ended leaves what it had. Settings that GRPOConfig of the
installed version does not know end it at once.
Written for TRL 1.16. On a CPU it samples with transformers; on a GPU it has not got past vLLM's start.
"""

import argparse
import hashlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

# Before vLLM is imported: its other runner asks for a package that it does without here.
os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

SAMPLES, MINIBATCH_PROMPTS, LIMIT = 16, 16, 512
STEPS = 2


TOKENS = [0]
"""Sampled since the last step ended."""


def coin(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    TOKENS[0] += sum(map(len, completion_ids))
    keys = (f"{prompt}|{ids[:8]}" for prompt, ids in zip(prompts, completion_ids, strict=True))
    return [float(hashlib.sha256(key.encode()).digest()[0] % 2) for key in keys]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tiny", action="store_true", help="a size of seconds, on a CPU")
    args = parser.parse_args()
    folder, tiny = args.folder, args.tiny
    prompts, samples, limit = (2, 4, 16) if tiny else (args.prompts, SAMPLES, LIMIT)
    updates = 1 if tiny else prompts // MINIBATCH_PROMPTS
    lines = (folder / "problems.jsonl").open(encoding="utf-8")
    ends: list[float] = []
    tokens: list[int] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates:
                return
            ends.append(time.perf_counter())
            peak = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
            tokens.append(TOKENS[0])
            TOKENS[0] = 0
            seconds, of = min(zip((b - a for a, b in itertools.pairwise(ends)), tokens, strict=True))
            found = {"s_a_step": seconds, "steps": len(tokens), "tokens_per_s": of / seconds}
            Path("trl.json").write_text(json.dumps(found | {"peak_gb": peak}), encoding="utf-8")

    on_gpu, parts = torch.cuda.is_available(), 1 if tiny else 16  # of a mini-batch, that fit at once
    settings = GRPOConfig(
        output_dir="trl", loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, num_generations=samples,
        generation_batch_size=prompts * samples, per_device_train_batch_size=prompts * samples // updates // parts,
        gradient_accumulation_steps=parts, max_completion_length=limit, learning_rate=1e-6,
        lr_scheduler_type="constant", bf16=on_gpu, use_cpu=not on_gpu, gradient_checkpointing=False,
        use_vllm=on_gpu, max_steps=STEPS * updates, save_strategy="no", report_to="none", disable_tqdm=True,
        **({"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if on_gpu else {}),
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32),
        reward_funcs=coin,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": json.loads(line)["problem"]} for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(folder / "policy", padding_side="left"),
        callbacks=[Clock()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
