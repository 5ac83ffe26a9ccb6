"""TRL's GRPOTrainer, built for a tiny random model: its own `_compute_loss` on our log-probs.

Only the forward pass of the model is replaced, by the batch's log-probs, where ratios of +-30 nats are wanted.
"""

import functools
import tempfile
from typing import Any

import torch
from batches import MAX_RESPONSE_TOKENS, Batch
from comparison import Result
from datasets import Dataset
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from dapo_lit.policy.base import character_tokenizer

VOCABULARY = 32


@functools.cache
def tiny_model() -> str:
    """A folder, because the trainer loads its frozen reference from where the policy came from."""
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            initializer_range=0.2,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    model.save_pretrained(folder)
    return folder


@functools.cache
def trainer(**settings: Any) -> GRPOTrainer:
    """A real trainer on the CPU; `settings` are fields of GRPOConfig."""
    arguments = {
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "num_generations": 4,
        "per_device_train_batch_size": 16,
        "steps_per_generation": 1,
        "max_completion_length": MAX_RESPONSE_TOKENS,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
    } | settings
    built = GRPOTrainer(
        model=Qwen2ForCausalLM.from_pretrained(tiny_model()),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(output_dir=tempfile.mkdtemp(), **arguments),
        train_dataset=Dataset.from_dict({"prompt": ["1"] * 16}),
        processing_class=character_tokenizer("0123456789+="),
    )
    built.current_gradient_accumulation_steps = built.args.gradient_accumulation_steps
    built.model.train()
    return built


def inputs(batch: Batch, generated_tokens: int | None = None) -> dict[str, Tensor]:
    """What `_generate_and_score_completions` hands on; `generated_tokens`: of the generation batch, None: this one."""
    num, width = batch.logprobs.shape
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, VOCABULARY, (num, 3), generator=generator)
    mask = batch.loss_mask.long()
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": torch.randint(2, VOCABULARY, (num, width), generator=generator),
        "completion_mask": mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old_logprobs,
        "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": mask.sum() if generated_tokens is None else torch.tensor(generated_tokens),
    }


def loss(batch: Batch, generated_tokens: int | None = None, **settings: Any) -> Result:
    """`_compute_loss` and its gradient with respect to the log-probs."""
    built = trainer(**settings)
    logprobs = batch.logprobs.clone().requires_grad_()
    built._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, batch.entropy, None)
    try:
        total = built._compute_loss(built.model, inputs(batch, generated_tokens))
    finally:
        del built._get_per_token_logps_and_entropies
    total.backward()
    return total, logprobs.grad
