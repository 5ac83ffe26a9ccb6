"""A switch is a switch: on a recorded batch each setting changes what it should and nothing else."""

import ast
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import dapo_lit
from dapo_lit.config import Config, config_folder, parse
from dapo_lit.config.algorithm import Techniques
from dapo_lit.config.shipped import choice, default_run
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Observations, Sample, SampleKey
from dapo_lit.objective.advantages import group_advantages
from dapo_lit.objective.diagnostics import finish
from dapo_lit.objective.tokens import Tokens
from dapo_lit.preflight.idle_settings import idle_settings
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.metrics import batch_metrics
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import token_batch
from dapo_lit.step.loss import TokenData, weighted_loss
from dapo_lit.switches.algorithm import collection_rules, loss_mask, objective, reward_shaping

LIMIT = 20
# Correct and length of each completion; the last group is all wrong, 20 tokens are cut off.
RECORDED = [
    [(True, 4), (False, 9), (True, 18), (False, 20)],
    [(True, 2), (True, 7), (True, 20), (False, 12)],
    [(False, 3), (False, 16), (False, 20), (False, 5)],
]


IN_EFFECT = (
    "clip/low_frac", "clip/high_frac", "clip/low_frac_last_epoch", "clip/high_frac_last_epoch", "clip/high_prob_mean",
    "clip/high_prob_max", "clip/dual_frac",
)  # fmt: skip
"""Metrics of the bounds in effect."""


def recorded(config: Config) -> list[Group]:
    """The groups, rewarded as `config` asks for it."""
    return [rewarded(config, index, completions) for index, completions in enumerate(RECORDED)]


def rewarded(config: Config, index: int, completions: list[tuple[bool, int]]) -> Group:
    """A group of answers, (correct, length) each."""
    group = Group(1, index, Problem(f"p{index}", "", ""), 0, (1, 2))
    for i, (correct, length) in enumerate(completions):
        sample = Sample(SampleKey(1, f"p{index}", 0, i), (5,) * length, (-1.0,) * length, length < LIMIT, 0)
        score = Score(correct, 1.0 if correct else -1.0)
        group.completions.append(Completion(sample, "", score, score.value))
    reward_shaping(config)(group.completions)
    return group


@cache
def noise() -> torch.Tensor:
    """[5, tokens]: old log-probs, changes, distances from the reference, entropies, values."""
    tokens = sum(length for group in RECORDED for _, length in group)
    return torch.randn(5, tokens, generator=torch.Generator().manual_seed(0))


def consequences(config: Config) -> dict[str, object]:
    """All that the algorithm's settings decide, on the recorded batch."""
    groups, settled = recorded(config), objective(config.algorithm, config.task.max_response_tokens)
    batch = token_batch(groups, loss_mask(config.algorithm)(groups), policy_version=0)
    old, changes, distances, entropy, values = noise()
    old, entropy = -old.abs() - 0.1, entropy.abs()
    logprobs, ref = (old + 0.5 * changes).requires_grad_(), old + 0.3 * distances
    completions = batch.completion_of_token
    tokens = TokenData(
        completions=completions, loss_mask=batch.loss_mask, completion_tokens=batch.response_lengths[completions],
        fresh=batch.fresh, rollout_logprobs=batch.rollout_logprobs, old_logprobs=old, ref_logprobs=ref, values=values,
    )  # fmt: skip
    earned, mask = settled.credit(batch, tokens).advantages, batch.loss_mask
    # Advantages of its own, so that the loss does not move with what moves the advantages.
    fixed = torch.where(completions % 2 == 0, 1.0, -1.0)
    losses, _ = settled.policy_loss(
        Tokens(
            logprobs, old, fixed, entropy, batch.response_lengths[completions], completions, torch.ones_like(mask),
            torch.Generator().manual_seed(1),
        ),
        settled.bounds,
    )  # fmt: skip
    zeros = torch.zeros_like(old)
    known = replace(tokens, advantages=fixed, weights=torch.ones_like(old), losses=zeros, slopes=zeros)
    terms, statistics = weighted_loss(settled, known, logprobs, entropy)
    metrics = finish(statistics)
    return {
        "rewards": [c.reward_shaped for g in groups for c in g.completions],
        "advantages": earned.tolist(),
        "mask": mask.tolist(),
        "weights": settled.weights(batch.loss_tokens, batch.group_index).tolist(),
        "full weights": settled.weights(batch.response_lengths, batch.group_index).tolist(),
        "loss": losses.tolist(),
        "terms": terms.tolist(),
        "sampling": asdict(collection_rules(config.algorithm)),
        # What a metric means: no setting may move one, but for the bounds that clip/* names as those in effect.
        "correct": [c.correct for g in groups for c in g.completions],
        "raw rewards": [c.reward for g in groups for c in g.completions],
        "penalty": [c.length_penalty for g in groups for c in g.completions],
        "metrics": {key: value for key, value in metrics.items() if key not in IN_EFFECT},
        "clip metrics": {key: metrics[key] for key in IN_EFFECT},
    }  # fmt: skip


A, T = "algorithm.", "algorithm.techniques."
CLIPPED, EARNED = {"loss", "clip metrics"}, {"advantages"}
WEIGHED = {"weights", "full weights"}
CHANGES: dict[str, tuple[list[str], list[str], set[str]]] = {
    # name: settings of both, those of the second, and what is another with them. That each key of the schema acts at
    # all: tests/test_wiring.py.
    "clip_higher": ([], [T + "clip_higher=false"], CLIPPED),
    "dynamic_sampling": ([], [T + "dynamic_sampling=false"], {"sampling"}),
    "token_level_loss": ([], [T + "token_level_loss=false"], WEIGHED),
    # Off, the hard punishment is in its place.
    "soft_overlong_punishment": ([], [T + "soft_overlong_punishment=false"], {"rewards"} | EARNED),
    "soft_overlong_punishment alone": (
        [A + "overlong.hard_punishment=false"], [T + "soft_overlong_punishment=false"], {"rewards"} | EARNED
    ),
    "overlong_filtering": ([], [T + "overlong_filtering=true"], {"mask", "weights"}),
    "clip.low": ([], [A + "clip.low=0.1"], CLIPPED | {"metrics"}),
    "clip.high": ([], [A + "clip.high=0.5"], CLIPPED),
    "clip.high without clip-higher": ([T + "clip_higher=false"], [A + "clip.high=0.5"], set()),
    "clip.dual": ([], [A + "clip.dual=1.2"], CLIPPED),
    "token_level_denominator": ([], [A + "token_level_denominator=group"], WEIGHED),
    "completion_level_denominator": (
        [T + "token_level_loss=false"], [A + "completion_level_denominator=constant"], WEIGHED
    ),
    "cache_tokens": ([], [A + "overlong.cache_tokens=10"], {"rewards", "penalty"} | EARNED),
    "penalty_factor": ([], [A + "overlong.penalty_factor=0.5"], {"rewards", "penalty"} | EARNED),
    "punish=mixed": ([], [A + "overlong.punish=mixed"], {"rewards"} | EARNED),  # the last group is all wrong
    "punish=pass_rate": ([], [A + "overlong.punish=pass_rate"], {"rewards"} | EARNED),
    "punish=right": ([], [A + "overlong.punish=right"], {"rewards"} | EARNED),
    "punish=none": ([A + "overlong.hard_punishment=false"], [A + "overlong.punish=none"], {"rewards"} | EARNED),
    "punish without the penalty": ([T + "soft_overlong_punishment=false"], [A + "overlong.punish=right"], set()),
    "hard_punishment": (
        [T + "soft_overlong_punishment=false"], [A + "overlong.hard_punishment=false"], {"rewards"} | EARNED
    ),
    "hard_punishment beside the soft one": ([], [A + "overlong.hard_punishment=false"], set()),
    "kl.beta in the loss": ([], [A + "kl.beta=0.1"], {"terms"}),
    "kl.beta in the reward": ([A + "kl.where=reward"], [A + "kl.beta=0.1"], EARNED),
    "kl.where": ([A + "kl.beta=0.1"], [A + "kl.where=reward"], {"terms"} | EARNED),
    "entropy.bonus": ([], [A + "entropy.bonus=0.1"], {"terms"}),
    "loss": ([], [A + "loss=gspo"], {"loss"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_what_it_should_on_a_recorded_batch_and_nothing_else(compose, name):
    both, second, changed = CHANGES[name]
    before, after = (consequences(compose(*options)) for options in (both, [*both, *second]))
    assert {key for key in before if before[key] != after[key]} == changed


@pytest.mark.parametrize("soft", [False, True])
def test_a_group_whose_only_right_answer_is_truncated_is_accepted_and_counted_where_it_has_no_signal(compose, soft):
    config = compose(f"algorithm.techniques.soft_overlong_punishment={soft}")
    group = rewarded(config, 0, [(True, LIMIT), (False, 3), (False, 5)])
    assert group.mixed
    batch = token_batch([group], loss_mask(config.algorithm)([group]), policy_version=0)
    earned = group_advantages(batch.rewards.reshape(1, -1))
    assert bool(earned.any()) == soft
    assert batch_metrics([group])["sampling/groups_equal_rewards_frac"] == 1 - soft


@pytest.mark.parametrize("estimator", ["group", "leave_one_out"])
def test_groups_that_lost_a_completion_are_compared_among_those_that_are_left(compose, estimator):
    """Rewards 1, -1, -1 and 1, -1: less the mean of all over the std (Eq. 9), or less the mean of the others."""
    config = compose(A + f"advantage.estimator={estimator}")
    verdicts = ([True, False, False], [True, False])
    groups = [rewarded(config, i, [(right, 1) for right in rights]) for i, rights in enumerate(verdicts)]
    batch = token_batch(groups, loss_mask(config.algorithm)(groups), policy_version=0)
    nothing = torch.zeros(len(batch.loss_mask))
    tokens = TokenData(
        loss_mask=batch.loss_mask, completion_tokens=batch.response_lengths[batch.completion_of_token],
        fresh=batch.fresh, rollout_logprobs=nothing, old_logprobs=nothing, completions=batch.completion_of_token,
    )  # fmt: skip
    earned = objective(config.algorithm, 8).credit(batch, tokens).advantages
    root = 3**0.5
    expected = {
        "group": [2 / root, -1 / root, -1 / root, 0.5**0.5, -(0.5**0.5)], "leave_one_out": [2, -1, -1, 2, -2]
    }[estimator]  # fmt: skip
    assert earned.tolist() == pytest.approx(expected, rel=1e-5)  # epsilon is 1e-6


def test_the_length_penalty_counts_the_eos_token(compose):
    config = compose(A + "overlong.cache_tokens=4")
    group = rewarded(config, 0, [(True, LIMIT - 4), (True, LIMIT - 3), (True, LIMIT)])
    # 4 tokens below the limit are free; one more is the EOS token that ends the response, and costs a quarter.
    assert [c.length_penalty for c in group.completions] == [0.0, -0.25, -1.0]
    assert [c.reward_shaped for c in group.completions] == [1.0, 0.75, 0.0]


PUNISHED = {
    "all": [[0.5, -1.5, -1], [-1.5, -1], [0.5, 1]],
    "mixed": [[0.5, -1.5, -1], [-1, -1], [0.5, 1]],
    "pass_rate": [[1 - 0.5 / 3, -1 - 0.5 / 3, -1], [-1, -1], [0.5, 1]],
    "right": [[0.5, -1, -1], [-1, -1], [0.5, 1]],
    "none": [[1, -1, -1], [-1, -1], [1, 1]],
}


@pytest.mark.parametrize("punish", PUNISHED)
def test_the_length_penalty_counts_for_the_answers_that_punish_names(compose, punish):
    """Half a penalty at two tokens below the limit; a mixed group, one that is all wrong, one that is all right."""
    config = compose(A + "overlong.cache_tokens=4", A + f"overlong.punish={punish}")
    long, short = LIMIT - 2, 3
    mixed, wrong, right = (
        [(True, long), (False, long), (False, short)],
        [(False, long), (False, short)],
        [(True, long), (True, short)],
    )
    groups = [rewarded(config, i, answers) for i, answers in enumerate((mixed, wrong, right))]
    assert [[c.reward_shaped for c in group.completions] for group in groups] == PUNISHED[punish]
    penalties = [[c.length_penalty for c in group.completions] for group in groups]
    assert penalties == [[-0.5, -0.5, 0], [-0.5, 0], [-0.5, 0]]  # as computed, whoever it counts for


@pytest.mark.parametrize(("counts", "penalties"), [("policy", [0.0, -0.25, -1.0]), ("all", [-0.75, -1.0, -1.0])])
def test_tokens_of_an_environment_count_in_the_length_penalty_where_that_is_asked_for(compose, counts, penalties):
    """Three of them in each answer: 16, 17 and 20 tokens become 19, 20 and 23."""
    config = compose(
        A + "overlong.cache_tokens=4", A + f"overlong.counts={counts}", "turns.environment=calculator",
        "turns.max_observation_tokens=3",
    )  # fmt: skip
    group = rewarded(config, 0, [(True, LIMIT - 4), (True, LIMIT - 3), (True, LIMIT)])
    for completion in group.completions:
        completion.sample = replace(completion.sample, observations=Observations([7, 8, 9], [2, 2, 3]))
    reward_shaping(config)(group.completions)
    assert [c.length_penalty for c in group.completions] == penalties
    assert [c.num_tokens for c in group.completions] == [16, 17, 20]


def test_a_missing_verdict_makes_no_group_one_with_a_right_answer(compose):
    config = compose(A + "overlong.cache_tokens=4", A + "overlong.punish=mixed")
    group = rewarded(config, 0, [(False, LIMIT), (False, 3)])
    lost = Completion(group.completions[0].sample, "", Score(True, 1.0, timed_out=True), 1.0)
    reward_shaping(config)([*group.completions, lost])
    assert [c.reward_shaped for c in group.completions] == [-1, -1]


def test_with_dynamic_sampling_a_penalty_for_mixed_groups_is_a_penalty_for_all(compose):
    """No group without a right answer is trained on, so nothing is left that the two would treat differently."""
    earned = [consequences(compose(A + f"overlong.punish={punish}")) for punish in ("all", "mixed")]
    kept = [i for i, g in enumerate(RECORDED) if any(right for right, _ in g)]
    assert kept == [0, 1]
    tokens = sum(length for i in kept for _, length in RECORDED[i])
    assert earned[0]["advantages"][:tokens] == earned[1]["advantages"][:tokens]


@pytest.mark.parametrize("wrong_value", [-1, 0])
def test_a_truncated_answer_is_punished_with_the_value_of_a_wrong_one(compose, wrong_value):
    config = compose(T + "soft_overlong_punishment=false", f"reward.wrong_value={wrong_value}")
    truncated, ended = rewarded(config, 0, [(True, LIMIT), (True, LIMIT - 1)]).completions
    assert (truncated.reward_shaped, ended.reward_shaped) == (wrong_value, 1.0)


def test_the_rules_of_a_step_are_those_of_the_config(compose):
    """Every key at a value that is neither its default nor that of a rule."""
    keys = {
        "max_rounds": 7, "on_exhausted": "top_up", "carry_over": "finished", "pass_rate_margin": 0.2,
        "max_staleness": 5, "request_groups": 6,
    }  # fmt: skip
    sizes = {"num_prompts": 3, "samples_per_prompt": 7}
    typed = [f"{A}dynamic_sampling.{key}={value}" for key, value in keys.items()]
    config = compose(*typed, *(f"{A}{key}={value}" for key, value in sizes.items()), f"{A}minibatch_prompts=3")
    settings = asdict(collection_rules(config.algorithm))
    assert {key: settings[key] for key in keys | sizes} == keys | sizes
    assert set(config.algorithm.dynamic_sampling.model_dump()) == {*keys, "filter_on"}
    assert collection_rules(compose(f"{A}dynamic_sampling.filter_on=shaped_reward").algorithm).filter_on == (
        "shaped_reward"
    )
    off = compose(f"{A}techniques.dynamic_sampling=false", f"{A}dynamic_sampling.request_groups=6").algorithm
    assert (collection_rules(off).dynamic_sampling, collection_rules(off).request_groups) == (False, None)


# `overlong.cache_tokens` and `penalty_factor` are the penalty that reward/length_penalty measures, `clip.low` the bound
# of clip/symmetric_high_frac; no switch and no other setting may move a metric's definition.
MOVES_A_METRIC = {"cache_tokens", "penalty_factor", "clip.low"}


def test_no_other_setting_moves_the_definition_of_a_metric():
    metrics = {"correct", "raw rewards", "penalty", "metrics"}
    assert {name for name, (_, _, changed) in CHANGES.items() if changed & metrics} == MOVES_A_METRIC


def test_every_technique_is_among_the_settings_that_are_turned():
    assert set(Techniques.model_fields) <= set(CHANGES)


PACKAGE = Path(dapo_lit.__file__).parent


def test_no_room_of_the_training_step_reads_a_switch_but_switches():
    for file in [f for room in ("lit", "step", "rollout", "objective", "build") for f in (PACKAGE / room).glob("*.py")]:
        read = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        assert "techniques" not in read, file


IDLE: dict[str, list[str]] = {
    "techniques.soft_overlong_punishment=true": [A + "overlong.cache_tokens=0"],
    "overlong.punish=mixed": [A + "overlong.punish=mixed"],
    "overlong.punish=right": [T + "soft_overlong_punishment=false", A + "overlong.punish=right"],
    "clip.high equals": [A + "clip.high=0.2"],
    "loss=reinforce has no upper bound": [A + "loss=reinforce", A + "minibatch_prompts=4"],
    "4 updates a step": ["algorithm=rloo", A + "minibatch_prompts=1"],
    "(rollout.steps_ahead=1)": ["algorithm=rloo", A + "minibatch_prompts=4", "rollout.steps_ahead=1"],
    "estimator=k1": ["algorithm=grpo", A + "kl.estimator=k1"],
    "weighs them": ["algorithm=gspo", T + "token_level_loss=true"],
    "clip.dual=3": ["algorithm=gspo", A + "clip.dual=3"],
    "clip.high=0.3": ["algorithm=grpo", A + "clip.high=0.3"],
    "clip.low=0.1": ["algorithm=rloo", A + "minibatch_prompts=4", A + "clip.low=0.1"],
    "advantage.scale_by_std=False": ["algorithm=reinforce_plus_plus", A + "advantage.scale_by_std=false"],
    "advantage.gamma=0.9": [A + "advantage.gamma=0.9"],
    "advantage.lam=0.9": ["algorithm=reinforce_plus_plus", A + "advantage.lam=0.9"],
    "correction.band=": [A + "correction.band=[0,3]"],
    "correction.band[0]=0.5": [A + "correction.kind=tis", A + "correction.band=[0.5,3]"],
    "kl.where=reward": [A + "kl.where=reward"],
    "techniques.clip_higher=true": [A + "minibatch_prompts=4"],
    "dynamic_sampling.max_rounds=1": [A + "dynamic_sampling.max_rounds=1", A + "dynamic_sampling.on_exhausted=top_up"],
    "dynamic_sampling.carry_over=finished": ["algorithm=naive_grpo", A + "dynamic_sampling.carry_over=finished"],
    "token_level_denominator=group": ["algorithm=naive_grpo", A + "token_level_denominator=group"],
    "completion_level_denominator=constant": [A + "completion_level_denominator=constant"],
    "critic.warmup_steps": ["algorithm=ppo"],
    "rollout.temperature=1e+12": ["rollout.temperature=1e12"],
    "rollout.temperature=0.001": ["rollout.temperature=0.001"],
    "algorithm.entropy.bonus=1e+06": [A + "entropy.bonus=1e6"],
    "algorithm.kl.beta=400": [A + "kl.beta=400"],
    "algorithm.optimizer.lr=0.5": [A + "optimizer.lr=0.5"],
    "algorithm.optimizer.warmup_steps=6": [A + "optimizer.warmup_steps=6"],
    "task.eval_path=mine.jsonl": ["task.eval_path=mine.jsonl"],
    "task.num_heldout=7": ["task=file", "task.path=mine.jsonl", "task.num_heldout=7"],
}
"""What a warning names -> settings without effect, or that nobody means."""


@pytest.mark.parametrize("key", IDLE)
def test_a_setting_without_effect_is_named_at_the_start(compose, key):
    config = compose(*IDLE[key], "budget.steps=5")
    (line,) = idle_settings(config, objective(config.algorithm, LIMIT))
    assert key in line


def test_no_shipped_algorithm_has_a_setting_without_effect():
    for file in sorted((config_folder() / "algorithm").glob("*.yaml")):
        tree = {**default_run(), "algorithm": choice("algorithm", file.stem)}
        tree = {key: value for key, value in tree.items() if key in Config.model_fields}
        config = parse(OmegaConf.to_container(OmegaConf.create(tree), resolve=True))
        assert idle_settings(config, objective(config.algorithm, LIMIT)) == [], file


@pytest.mark.parametrize(("name", "low", "high"), [("clip_cov", 0.0, 2.0), ("kl_cov", 0.8, 1.2)])
def test_the_covariance_algorithms_have_the_bounds_and_rewards_of_their_authors_scripts(compose, name, low, high):
    config = compose(f"algorithm={name}")
    bounds = objective(config.algorithm, LIMIT).bounds
    assert (1 - bounds.low, 1 + bounds.high) == pytest.approx((low, high))
    group = rewarded(config, 0, [(True, LIMIT), (True, 3), (False, LIMIT)])
    assert [c.reward_shaped for c in group.completions] == [1.0, 1.0, -1.0]  # neither a penalty nor a hard limit


@pytest.mark.parametrize("name", ["dr_grpo", "gmpo"])
def test_a_truncated_right_answer_is_wrong_where_the_authors_code_has_it_so(compose, name):
    group = rewarded(compose(f"algorithm={name}"), 0, [(True, LIMIT), (True, 3), (False, 3)])
    assert [c.reward_shaped for c in group.completions] == [-1.0, 1.0, -1.0]
