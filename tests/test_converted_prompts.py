"""Prompts of converted runs, token by token as verl and TRL send them, on rows in the layouts of public data sets.

The rendering of both is written out here from their sources: verl's RLHFDataset applies the chat template to the row's
messages; TRL's GRPOTrainer does so to messages, and encodes a text as it is.
"""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dapo_lit.config.shipped import choice
from dapo_lit.data.sources import load_with_selection
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.policy.base import character_tokenizer
from dapo_lit_tools.commands.convert import conversion

DAPO_START = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_END = '\n\nRemember to put your answer on its own line after "Answer:".'
GSM8K = "Ann has 3 apples and buys 4. How many has she?"
USER = "user"


def verl_row(text: str, answer: object, source: str, before: tuple = (), **more: object) -> dict:
    return {
        "data_source": source, "prompt": [*before, {"role": USER, "content": text}], "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer}, "extra_info": {"index": 0, "split": "train"}, **more,
    }  # fmt: skip


LAYOUTS = {
    "verl: DAPO-Math-17k": verl_row(f"{DAPO_START}What is 2 + 3?{DAPO_END}", "5", "math_dapo"),
    "verl: AIME 2024": verl_row(f"{DAPO_START}Find x.{DAPO_END}", "204", "math_dapo"),
    "verl: gsm8k": verl_row(
        GSM8K + ' Let\'s think step by step and output the final answer after "####".', "7", "openai/gsm8k"
    ),
    "verl: MATH": verl_row(
        r"Find $x$. Let's think step by step and output the final answer within \boxed{}.", "5", "DigitalLearningGmbH"
    ),
    "verl: Skywork-OR1": verl_row("Find x.", '["5"]', "train-math", model_difficulty={"DeepSeek": 3}),
    "verl: DeepScaleR": verl_row("Find x. Let's think step by step.", "5", "deepscaler"),
    "verl: Eurus-2-RL": verl_row(
        "Find x.", "5", "numina", before=({"role": "system", "content": "Think first.\n"},)
    ),
    "trl: DeepMath, messages": {"prompt": [{"role": USER, "content": "Find x."}], "solution": "$5$"},
    "trl: OpenR1-Math with a system prompt": {
        "prompt": [{"role": "system", "content": "Answer in tags."}, {"role": USER, "content": "Find x."}],
        "solution": "5", "problem": "Find x.",
    },
    "trl: tl;dr, a text": {"prompt": "SUBREDDIT: r/x\nPOST: hello\nTL;DR:", "answer": "hi"},
    "trl: countdown, a text": {"prompt": "Using the numbers [1, 2], make 3.", "answer": "1+2", "target": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = character_tokenizer("".join(sorted({*json.dumps(LAYOUTS, ensure_ascii=False), "\n", "<", ">"})))
    made.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_policy_reads_the_tokens_that_the_other_trainer_sends(tmp_path: Path, tokenizer, name: str):
    system, row = name.split(":")[0], LAYOUTS[name]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    command = {
        "verl": f"python3 -m verl.trainer.main_ppo data.train_files={file} actor_rollout_ref.rollout.n=8",
        "trl": f"trl grpo --dataset_name {file} --num_generations 8",
    }[system]
    found = conversion(command.split())[1]
    template = PromptTemplate.load(str(found.settings.get("task.template", choice("task", "file")["template"])))
    (problem,) = load_with_selection(str(file), "train", columns=found.settings.get("task.columns", {}))[0]
    (ours,) = template.encode_all([template.asked(problem)], tokenizer)
    prompt = row["prompt"]
    if isinstance(prompt, list):
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        theirs = tokenizer(prompt)["input_ids"]
    assert ours == theirs


def test_rows_without_a_prompt_are_said_to_need_one(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    for command in (
        f"trl grpo --dataset_name {file} --num_generations 8",
        f"trl grpo --dataset_name {file}.gone --beta 1",
    ):
        assert "task.template" in conversion(command.split())[1].notes
