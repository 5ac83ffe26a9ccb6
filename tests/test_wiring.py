"""Every science key of the schema reaches what it is meant to change: a run of one step with another value of the key
differs in the named observable. A key that is dropped on its way from the config to the arithmetic fails its row.

The table must have a row for each key, so a new key without one fails too.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_runs import Run

from ablations.errors import UserError
from dapo_lit.build.base_policy import policy_folder
from dapo_lit.cli.config_tree import composed_tree, resolved
from dapo_lit.config import parse
from dapo_lit.config.identity import kinds
from dapo_lit.config.sections import HORIZON, SCIENCE

BASE = {
    "+experiment": "four_sums", "budget.steps": 1, "algorithm.num_prompts": 4, "algorithm.minibatch_prompts": 2,
    "algorithm.samples_per_prompt": 6, "algorithm.optimizer.lr": 0.01, "algorithm.optimizer.warmup_steps": 0,
    "algorithm.optimizer.weight_decay": 0.1, "algorithm.dynamic_sampling.max_rounds": 30, "task.max_response_tokens": 8,
    "algorithm.overlong.cache_tokens": 4, "trainer.micro_batch_tokens": 200, "evaluation.samples": 2,
    "evaluation.every": 1, "task.num_heldout": 4, "logger.rollouts_every": 0, "logger.progress": "none",
}  # fmt: skip
PPO = {"algorithm": "ppo", "algorithm.critic.warmup_steps": 0}
NEITHER_ADAM_NOR_CLIP = {"algorithm.optimizer.eps": 1.0, "algorithm.optimizer.grad_clip": 1e9}  # they undo a factor
KL = {"algorithm.kl.beta": 0.1}
LORA = {"policy.lora": {"rank": 2, "alpha": 32.0}}
OFF_POLICY = {"algorithm.epochs": 3}  # so that ratios leave the clip
FEW_ROUNDS = {"algorithm.dynamic_sampling.max_rounds": 1, "algorithm.num_prompts": 8}
SIXTEEN_BITS = {"policy.dtype": "bfloat16"}
"""Sampler and trainer then disagree, so that corrections have something to correct."""
OWN_PARTS = {
    "algorithm.advantage.estimator": "wiring_parts.scaled", "algorithm.overlong.punish": "wiring_parts.in_part",
    "algorithm.correction.kind": "wiring_parts.times", "+algorithm.advantage.options.scale": 1.0,
    "+algorithm.overlong.options.share": 1.0, "+algorithm.correction.options.factor": 1.0,
}  # fmt: skip
OWN = {
    "task": "file", "policy.path": "MICRO", "task.path": "PROBLEMS",
    "task.eval_path": "HELD_OUT", "task.template": "plain", "task.max_prompt_tokens": 12,
    "algorithm.dynamic_sampling.on_exhausted": "top_up", "algorithm.dynamic_sampling.max_rounds": 2,
}  # fmt: skip
"""Problems from files; names in capitals become paths of what the fixture `files` wrote."""
TWO_STEPS = {"budget.steps": 2}
TURNS = {"turns.environment": "wiring_rewards.says", "turns.max_turns": 3, "turns.max_observation_tokens": 6}


@dataclass(frozen=True)
class Change:
    value: Any
    moves: str
    """The observable that must differ."""
    under: Mapping[str, Any] = field(default_factory=dict)
    """Settings of both runs without which the key has nothing to act on."""
    keeps: str | None = None
    """An observable that must not differ."""


CHANGES = {
    "seed": Change(1, "responses"),
    "algorithm.techniques.clip_higher": Change(False, "weights", OFF_POLICY, keeps="first gradient"),
    "algorithm.techniques.dynamic_sampling": Change(False, "accepted"),
    "algorithm.techniques.token_level_loss": Change(False, "first gradient", keeps="accepted first"),
    "algorithm.techniques.soft_overlong_punishment": Change(False, "first gradient", keeps="accepted first"),
    "algorithm.techniques.overlong_filtering": Change(True, "first gradient", keeps="accepted first"),
    "algorithm.own_techniques": Change(["wiring_parts.HALVED"], "first gradient", keeps="accepted first"),
    "algorithm.loss": Change("cispo", "weights", OFF_POLICY),
    "algorithm.loss_options": Change({"coefficient": 50.0}, "weights", {"algorithm": "kl_cov"} | OFF_POLICY),
    "algorithm.advantage.estimator": Change("leave_one_out", "first gradient"),
    "algorithm.advantage.options": Change({"scale": 2.0}, "first gradient", OWN_PARTS),
    "algorithm.overlong.options": Change({"share": 0.5}, "first gradient", OWN_PARTS),
    "algorithm.correction.options": Change({"factor": 0.5}, "first gradient", OWN_PARTS | SIXTEEN_BITS),
    "algorithm.advantage.scale_by_std": Change(False, "first gradient"),
    "algorithm.advantage.epsilon": Change(0.5, "first gradient"),
    "algorithm.advantage.whiten": Change(True, "first gradient"),
    "algorithm.advantage.gamma": Change(0.5, "weights", PPO),
    "algorithm.advantage.lam": Change(0.5, "weights", PPO),
    "algorithm.entropy.bonus": Change(0.5, "first gradient"),
    "algorithm.entropy.control": Change("wiring_parts.raised", "weights", TWO_STEPS, keeps="first gradient"),
    "algorithm.entropy.options": Change(
        {"to": 0.5},
        "weights",
        TWO_STEPS | {"algorithm.entropy.control": "wiring_parts.raised", "+algorithm.entropy.options.to": 0.1},
        keeps="first gradient",
    ),
    "algorithm.entropy.top_frac": Change(0.3, "first gradient"),
    "algorithm.kl.beta": Change(1.0, "weights", KL),
    "algorithm.kl.estimator": Change("k1", "weights", KL),
    "algorithm.critic.lr": Change(0.1, "weights", PPO, keeps="first gradient"),
    "algorithm.critic.loss_weight": Change(9.0, "weights", PPO | NEITHER_ADAM_NOR_CLIP),
    "algorithm.critic.clip": Change(1e-4, "weights", PPO | OFF_POLICY, keeps="first gradient"),
    "algorithm.critic.warmup_steps": Change(1, "weights", PPO),
    "algorithm.dynamic_sampling.filter_on": Change("shaped_reward", "accepted"),
    "algorithm.dynamic_sampling.max_rounds": Change(2, "accepted", FEW_ROUNDS),
    "algorithm.dynamic_sampling.on_exhausted": Change("top_up", "accepted", FEW_ROUNDS),
    "algorithm.dynamic_sampling.pass_rate_margin": Change(0.4, "accepted"),
    "algorithm.dynamic_sampling.carry_over": Change("finished", "accepted", TWO_STEPS),
    "algorithm.dynamic_sampling.request_groups": Change(16, "row:sampling/groups_generated"),
    "algorithm.num_prompts": Change(6, "accepted"),
    "algorithm.samples_per_prompt": Change(4, "accepted"),
    "algorithm.minibatch_prompts": Change(4, "first gradient", keeps="accepted first"),
    "algorithm.epochs": Change(2, "weights", keeps="first gradient"),
    "algorithm.old_logprobs": Change("rollout", "row:mismatch/kl"),
    "algorithm.correction.kind": Change("tis", "first gradient", SIXTEEN_BITS),
    "algorithm.correction.band": Change(
        [0.999, 1.001], "first gradient", SIXTEEN_BITS | {"algorithm.correction.kind": "icepop"}
    ),
    "algorithm.optimizer.lr": Change(0.02, "weights", keeps="first gradient"),
    "algorithm.optimizer.betas": Change([0.1, 0.9], "weights", keeps="first gradient"),
    "algorithm.optimizer.eps": Change(1.0, "weights", keeps="first gradient"),
    "algorithm.optimizer.weight_decay": Change(0.9, "weights", keeps="first gradient"),
    "algorithm.optimizer.warmup_steps": Change(2, "weights", keeps="first gradient"),
    "algorithm.optimizer.schedule": Change("linear", "weights", TWO_STEPS, keeps="first gradient"),
    "algorithm.optimizer.grad_clip": Change(0.01, "weights", {"algorithm.optimizer.eps": 1.0}, keeps="first gradient"),
    "policy.path": Change("OTHER_MICRO", "first evaluation", OWN),
    "policy.architecture": Change({"num_attention_heads": 4, "num_key_value_heads": 4}, "responses"),
    "policy.dtype": Change("bfloat16", "responses"),
    "policy.lora.rank": Change(4, "first gradient", LORA),
    "policy.lora.alpha": Change(1.0, "weights", LORA),
    "task.max_response_tokens": Change(6, "responses"),
    "task.base_seed": Change(1, "responses"),
    "task.label": Change("other", "columns"),
    "task.path": Change("OTHER_PROBLEMS", "prompts", OWN),
    "task.eval_path": Change("OTHER_PROBLEMS", "first evaluation", OWN),
    "task.columns": Change({"problem": "other"}, "prompts", OWN),
    "task.deduplicate": Change(True, "problems", OWN),
    "task.template": Change("TEMPLATE", "first evaluation", OWN),
    "task.num_problems": Change(2, "problems", OWN),
    "task.num_heldout": Change(1, "first evaluation", OWN),
    "task.max_prompt_tokens": Change(9, "first evaluation", OWN),
    "turns.environment": Change("wiring_rewards.says_more", "responses", TURNS),
    "turns.max_turns": Change(2, "responses", TURNS),
    "turns.max_turn_tokens": Change(2, "responses", TURNS),
    "turns.max_observation_tokens": Change(1, "responses", TURNS),
    "turns.template": Change('"{observation}="', "responses", TURNS),
    "turns.deadline_s": Change(
        0.2,
        "row:turns/ended_by_failed_frac",
        TURNS | {"turns.environment": "wiring_rewards.slow", "reward.max_error_frac": 1.0},
    ),
    "reward.rule": Change("sympy", "scores"),
    "reward.extraction": Change("hash", "scores"),
    "reward.function": Change("wiring_rewards.even", "scores"),
    "reward.max_error_frac": Change(1.0, "ended", {"reward.function": "wiring_rewards.failing"}),
    "reward.wrong_value": Change(0, "first gradient", {"algorithm.advantage.scale_by_std": False}),
    "reward.weights": Change({"correctness": 0.5}, "first gradient", {"algorithm.advantage.scale_by_std": False}),
    "rollout.temperature": Change(0.7, "responses"),
    "rollout.noise_stream": Change(1, "responses", keeps="first evaluation"),
    "rollout.steps_ahead": Change(1, "row:sampling/stale_tokens_frac", TWO_STEPS),
    "trainer.fp32_head": Change(True, "first gradient", SIXTEEN_BITS),
    "budget.steps": Change(2, "ended"),
    "budget.tokens_generated": Change(10, "ended", TWO_STEPS),
    "evaluation.every": Change(0, "evaluated steps", TWO_STEPS),
    "evaluation.at_tokens": Change([10], "evaluated steps", TWO_STEPS | {"evaluation.every": 0}),
    "evaluation.samples": Change(3, "first evaluation", keeps="weights"),
    "evaluation.final_samples": Change(5, "last evaluation", keeps="first evaluation"),
    "evaluation.max_response_tokens": Change(4, "first evaluation", keeps="weights"),
    "evaluation.temperature": Change(0.3, "first evaluation", keeps="weights"),
    "evaluation.top_p": Change(0.5, "first evaluation", keeps="weights"),
}
ON_A_RECORDED_BATCH = (
    "clip.low", "clip.high", "clip.dual", "token_level_denominator", "completion_level_denominator", "kl.where",
    "overlong.cache_tokens", "overlong.penalty_factor", "overlong.punish", "overlong.hard_punishment",
    "overlong.counts",
)  # fmt: skip
ELSEWHERE = {f"algorithm.{key}": "tests/switches/test_switches.py" for key in ON_A_RECORDED_BATCH} | {
    "algorithm.family": "a name of folders: tests/ablations", "policy.name": "a name of folders",
    "fork.run": "tests/test_fork.py", "fork.steps": "tests/test_fork.py", "fork.horizon": "tests/test_fork.py",
    "task.name": "each task has its tests: tests/tasks", "task.options": "tests/tasks",
    "task.base": "tests/policy/test_base.py", "evaluation.benchmarks": "tests/test_benchmarks.py",
    "rollout.engine": "tests/engines, tests/vllm", "rollout.vllm.deterministic": "a GPU's: tests/gpu_contracts",
    "rollout.vllm.dtype": "tests/engines/test_vllm_settings.py",
    "rollout.vllm.fp32_head": "tests/vllm", "trainer.tf32": "a GPU's: tests/test_fitting.py",
    "trainer.sharding.dtype": "FSDP's: tests/lit/test_ranks.py",
    "algorithm.dynamic_sampling.max_staleness": "tests/rollout",
    "reward.deadline_s": "tests/preflight/test_reward_check.py",
}  # fmt: skip
"""Keys without a row, each with where it is tested."""


QUESTIONS = [
    {"problem": "2 + 3 = ?", "answer": "5", "other": "3 + 2 = ?"},
    {"problem": "4 * 2 = ?", "answer": "8", "other": "2 * 4 = ?"},
    {"problem": "10 - 7 = ?", "answer": "3", "other": "7 - 4 = ?"},
    {"problem": "6 / 2 = ?", "answer": "3", "other": "9 / 3 = ?"},
    {"problem": "2 + 3 = ?", "answer": "5", "other": "1 + 4 = ?"},
]


@pytest.fixture(scope="module")
def files(cache, tmp_path_factory) -> dict[str, str]:
    """The files that rows of the table name."""
    folder = tmp_path_factory.mktemp("files")

    def written(name: str, rows: list[dict[str, Any]]) -> str:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / name)

    (folder / "template.yaml").write_text('answer_format: none\ntext: "{problem} "\n')
    micro = parse(resolved(composed_tree(["+experiment=four_sums"])))
    return {
        "MICRO": str(policy_folder(micro.policy, micro.task)),
        "OTHER_MICRO": str(policy_folder(micro.policy, micro.task.model_copy(update={"base_seed": 1}))),
        "PROBLEMS": written("problems.jsonl", QUESTIONS),
        "OTHER_PROBLEMS": written("other.jsonl", [q | {"problem": q["other"]} for q in QUESTIONS]),
        "HELD_OUT": written("held_out.jsonl", QUESTIONS[2:4]),
        "TEMPLATE": str(folder / "template.yaml"),
    }


@pytest.fixture(scope="module")
def result(files, tmp_path_factory) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    @functools.cache
    def of(items: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        return observed(dict(items), tmp_path_factory.mktemp("wiring"))

    return lambda settings: of(tuple((key, override(value, files)) for key, value in settings.items()))


def override(value: Any, files: Mapping[str, str]) -> str:
    """A value as Hydra's command line has it, with the paths of files in place of their names."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {override(v, files)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(override(v, files) for v in value) + "]"
    return str(value).lower() if isinstance(value, bool) else files.get(str(value), str(value))


class Gradients:
    """Keeps the gradients of the updates."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def micro_batch(self, *_: Any) -> None: ...

    def update(self, loss: float, gradients: list[torch.Tensor]) -> None:
        self.found.append(torch.cat([g.flatten() for g in gradients]).clone())


def observed(settings: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The observables of a run, by name."""
    config = parse(
        resolved(composed_tree([*(f"{key}={value}" for key, value in settings.items()), f"runs_dir={folder}"]))
    )
    try:
        run = Run(config)
        problems = [(problem.id, problem.problem) for problem in run.parts.problems.train]
    except (ValueError, UserError) as error:
        return {"ended": type(error).__name__}
    gradients, steps = Gradients(), []
    run.module.observer = gradients  # type: ignore[assignment]
    make_updates = run.module.make_updates

    def recorded(batch: Any) -> None:
        groups = batch.collected.accepted
        steps.append([[(g.problem.id, tuple(c.sample.response_ids.tolist())) for c in g.completions] for g in groups])
        make_updates(batch)

    run.module.make_updates = recorded  # type: ignore[method-assign]
    ended: Any = None
    try:
        run.fit()
    except (ValueError, RuntimeError, UserError) as error:
        ended = type(error).__name__
    rows = pd.read_json(run.folder.path / "metrics.jsonl", lines=True).to_dict("records")
    tables = sorted(run.folder.path.glob("eval/*/*.parquet"))
    evaluations = [
        [tuple(row) for row in pd.read_parquet(table)[["problem_id", "response"]].itertuples(index=False)]
        for table in tables
    ]
    found: dict[str, Any] = {
        "ended": (ended, len(steps)),
        "problems": problems,
        "prompts": [text for _, text in problems],
        "columns": sorted({key for row in rows for key in row}),
        "accepted": steps,
        "accepted first": steps[:1],
        "responses": steps[:1],
        "scores": [row.get("rollout/accuracy") for row in rows],
        "weights": torch.cat([p.detach().flatten() for p in run.module.parameters()]),
        "first gradient": gradients.found[0] if gradients.found else None,
        "evaluated steps": [table.name for table in tables],
        "first evaluation": evaluations[0],
        "last evaluation": evaluations[-1],
    }
    return found | {f"row:{key}": [row.get(key) for row in rows] for key in {key for row in rows for key in row}}


def test_every_science_key_of_the_schema_has_a_row():
    known = kinds()
    leaves = {key for key in known if not any(other.startswith(f"{key}.") for other in known)}
    science = {key for key in leaves if known[key] in (SCIENCE, HORIZON)}
    assert science == CHANGES.keys() | ELSEWHERE.keys()
    assert not CHANGES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_another_value_of_a_key_moves_what_it_is_meant_to_change(result, key):
    change = CHANGES[key]
    group = {k: v for k, v in change.under.items() if k.startswith("+") or "." not in k}  # groups before single values
    base = (
        {"+experiment": "four_sums"}
        | group
        | {k: v for k, v in (BASE | dict(change.under)).items() if k != "+experiment"}
    )
    before, after = result(base), result(base | {key: change.value})
    assert differ(before[change.moves], after[change.moves])
    if change.keeps:
        assert not differ(before[change.keeps], after[change.keeps])


def differ(one: Any, other: Any) -> bool:
    """Numbers by more than rounding: another path through the same arithmetic is no effect."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        return not torch.allclose(one, other, rtol=1e-3, atol=1e-5 * float(one.abs().max()))
    return bool(one.shape != other.shape) if isinstance(one, torch.Tensor) else one != other


def test_evaluations_of_the_same_weights_draw_the_same_samples(result):
    found = result(BASE | TWO_STEPS | {"algorithm.optimizer.lr": 1e-30})
    assert len(found["evaluated steps"]) == 3
    assert found["first evaluation"] == found["last evaluation"]
