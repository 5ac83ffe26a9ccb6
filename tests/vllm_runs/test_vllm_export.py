"""An exported run is a folder that vLLM loads as it is: same tokens, same log-probs as transformers."""

import os
from pathlib import Path

import pytest
import torch
from commands import export_to
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_lit.engines.vllm_engine.engine import SETTINGS
from dapo_lit.train import train

HEADS_OF_32 = ("policy.architecture.hidden_size=64", "policy.name=micro_heads_of_32")  # vLLM on the CPU has none of 24
QUESTIONS = ["1+2=", "2+2=", "3+4="]


@pytest.fixture
def exported(compose, tmp_path) -> Path:
    train(compose(*HEADS_OF_32, "budget.steps=2", "algorithm.optimizer.lr=0.01"), [])
    out = tmp_path / "exported"
    export_to(out, tmp_path / "runs" / "four_sums" / "dapo" / "seed_0")
    return out


def test_vllm_loads_an_exported_run_and_gives_the_tokens_and_logprobs_of_transformers(exported):
    os.environ.update(SETTINGS)
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(exported), dtype="float32", enforce_eager=True, max_model_len=32, max_num_seqs=4,
        kv_cache_memory_bytes=2**26, logprobs_mode="processed_logprobs", disable_log_stats=True,
    )  # fmt: skip
    answers = llm.generate(QUESTIONS, SamplingParams(temperature=0.0, max_tokens=12, logprobs=1), use_tqdm=False)

    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported).eval(), AutoTokenizer.from_pretrained(exported)
    lengths = set()
    for question, answer in zip(QUESTIONS, answers, strict=True):
        prompt, response = tokenizer.encode(question), list(answer.outputs[0].token_ids)
        assert answer.prompt_token_ids == prompt
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert logprobs.argmax(-1).tolist() == response
        found = [position[token].logprob for position, token in zip(answer.outputs[0].logprobs, response, strict=True)]
        assert found == pytest.approx(logprobs.amax(-1).tolist(), abs=1e-4)
        assert len(response) == 12 or response[-1] in model.generation_config.eos_token_id
        lengths.add(len(response))
    assert max(lengths) > 1
    llm.llm_engine.engine_core.shutdown()
