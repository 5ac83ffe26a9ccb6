"""A model as reward: a language model is asked whether a response is right, and its odds of "Yes" are the value.

`DAPO_LIT_JUDGE` names a local folder or a hub id. Each worker holds its own copy on the CPU, loaded by `prepare` before
the deadline starts to run, so give the verifier as many workers as copies fit into memory:

    weights = {"correctness": 1.0, "model_judge.reward": 0.2}
    Verifier(rule="sympy", extraction="boxed", weights=weights, workers=1, deadline_s=30)

A model can be fooled: add it to a rule with a small weight rather than making it the whole reward (`function`).
"""

import os
from collections.abc import Sequence
from functools import cache

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.score import Score

MEMORY_MB = 32 * 1024
"""Address space, most of it torch's own libraries and the mapped file of weights."""
MAX_TOKENS = 1024
"""Tokens shown from the end of a response, where the answer is."""
PROMPT = """Question: {problem}
Reference answer: {answer}
Response: {response}
Does the response reach the reference answer? Reply Yes or No: """


@cache
def prepare() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the judge once a process; raises KeyError without DAPO_LIT_JUDGE."""
    folder = os.environ["DAPO_LIT_JUDGE"]
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def reward(problems: Sequence[RewardProblem], completions: Sequence[str]) -> list[Score]:
    """2 p - 1 with p the judge's probability of Yes against No, so from -1 to 1; correct above 0."""
    return [_judge(problem, text) for problem, text in zip(problems, completions, strict=True)]


@torch.inference_mode()
def _judge(problem: RewardProblem, completion: str) -> Score:
    model, tokenizer = prepare()
    response = tokenizer.decode(tokenizer.encode(completion, add_special_tokens=False)[-MAX_TOKENS:])
    prompt = PROMPT.format(problem=problem.problem, answer=problem.answer, response=response)
    logits = model(torch.tensor([tokenizer.encode(prompt)])).logits[0, -1]
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("Yes", "No"))
    probability = torch.softmax(logits[[yes, no]].float(), dim=0)[0].item()
    return Score(correct=probability > 0.5, value=2 * probability - 1)
