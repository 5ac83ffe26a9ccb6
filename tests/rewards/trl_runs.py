"""Runs the examples of trl_examples.py as `dapo_lit.train(...)` does, one step each, in this process."""

from pathlib import Path
from typing import Any

from small_runs import Run
from tiny_policy import TINY
from trl_examples import EXAMPLES

from dapo_lit import api
from dapo_lit.cli.command import compose
from dapo_lit.policy.base import character_tokenizer, random_model
from dapo_lit.policy.load import save_policy
from dapo_lit.preflight.files import check_files
from dapo_lit.preflight.problems import try_rewards

SMALL = {
    "algorithm.samples_per_prompt": 2, "algorithm.num_prompts": 2, "algorithm.minibatch_prompts": 2,
    "task.max_response_tokens": 8, "task.template": "plain", "task.max_prompt_tokens": 16,
    "evaluation.every": 100, "trainer.threads": 1, "logger.progress": "none", "algorithm.overlong.cache_tokens": 2,
}  # fmt: skip


def tiny_model(folder: Path) -> Path:
    tokenizer = character_tokenizer("0123456789+-=<>/ab")
    save_policy(folder / "model", random_model(TINY, tokenizer, seed=0), tokenizer, {})
    return folder / "model"


def in_process(command: str, *arguments: str, **_: Any) -> None:
    """What the command does with a run of one step: the checks of files and rewards, and the step."""
    run = Run(compose(*arguments))
    config, parts = run.parts.config, run.parts
    check_files(config.task, config.reward)
    with parts.verifier as verifier:
        ids_of = parts.tokenizer.encode
        try_rewards(
            verifier, parts.problems.train, config.reward.extraction, config.reward.max_error_frac, ids_of=ids_of
        )
        run.fit()


def trained(name: str, model: Path, folder: Path) -> api.Run:
    """The run of an example, where `api._command` is `in_process`."""
    case = EXAMPLES[name]
    return api.train(
        "hf", "algorithm=naive_grpo", model=model, data=case.rows, reward=case.reward, reward_weights=case.weights,
        steps=1, settings=SMALL, runs_dir=folder / "runs",
    )  # fmt: skip
