"""Estimators, losses, penalties and corrections in a user's file: found, filled in, checked by what they declare."""

import doctest
import importlib
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import run_cli
from torch import Tensor
from wiring_parts import SHORT

from ablations.compare.contrasts import contrasts
from ablations.designs import Design, read_arm
from ablations.figures.style import contrast_name, family_name
from ablations.read.guard import composed_refusals
from dapo_lit.build.components import RunComponents
from dapo_lit.build.inputs import sources
from dapo_lit.cli.command import compose as composed
from dapo_lit.cli.jobs import arm_of
from dapo_lit.config import Config, ConfigError
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import Sample, SampleKey
from dapo_lit.imports import CODE
from dapo_lit.objective.needs import Needs
from dapo_lit.preflight.idle_settings import idle_settings, idle_techniques
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion, Group
from dapo_lit.step.batch import TokenBatch, token_batch
from dapo_lit.step.loss import TokenData
from dapo_lit.switches.algorithm import correction, credit, loss_mask, objective, reward_shaping
from dapo_lit.switches.parts import PENALTY, SLOTS, check_rewards, part_of, slot_of
from dapo_lit.train import check_study

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples" / "algorithms"
EXAMPLE_PARTS = ("maxrl.maxrl", "w_reinforce.weighted", "sapo.sapo", "dppo.binary_tv", "success_gate.success_gate")
A = "algorithm."
ESTIMATOR = A + "advantage.estimator="


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@Needs(group=3, source="a paper, Eq. 1")
def of_three(rewards: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * rewards


@Needs(options={"gain": (0, 2)})
def of_tokens(rewards: Tensor, lengths: Tensor, *, gain: float = 1.0, gamma: float) -> Tensor:
    assert int(lengths.sum()) == len(rewards)
    return gain * gamma * rewards


def too_few(rewards: Tensor) -> Tensor:
    return rewards[0]


def infinite(rewards: Tensor) -> Tensor:
    return rewards / 0


def failing(correct: Tensor) -> Tensor:
    raise RuntimeError("no such thing")


def half(correct: Tensor, *, share: float = 0.5) -> Tensor:
    return torch.full(correct.shape, share)


def by_completion(old_logprobs: Tensor, rollout_logprobs: Tensor, completions: Tensor, *, high: float = 9.0) -> Tensor:
    return (completions + 1.0).clamp(max=high)


@Needs(refuses={"advantage.whiten=true": "whitening undoes its scale"})
def unwhitened(rewards: Tensor) -> Tensor:
    return rewards


@Needs(refuses={"clip.dual=null": "it has its own", "critic.lr=0.5": "of a critic"}, warns={"kl.beta=0": "no anchor"})
def undecided(rewards: Tensor) -> Tensor:
    return rewards


@Needs(refuses={"techniqes.token_level_loss=true": "a slip"})
def mistyped(rewards: Tensor) -> Tensor:
    return rewards


@Needs(options={"scal": (0, 1)})
def of_no_option(rewards: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * rewards


def with_returns(rewards: Tensor) -> tuple[Tensor, Tensor]:
    return rewards, rewards


def without_returns(rewards: Tensor, lengths: Tensor, values: Tensor) -> Tensor:
    return rewards - values


def of_values(rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return rewards - values, rewards


def by_the_right(correct: Tensor) -> Tensor:
    """Fails in a group without a right answer."""
    return correct.double() * correct.nonzero()[0]


def by_the_wrong(correct: Tensor) -> Tensor:
    """Fails in a group whose answers are all right."""
    return correct.double() * (~correct).nonzero()[0]


@Needs(group=3)
def third_of_three(correct: Tensor) -> Tensor:
    return correct.double() * (correct[2] + 1)


@Needs(both_signs=True)
def over_the_spread(rewards: Tensor) -> Tensor:
    """Finite only where wrong answers have negative rewards."""
    return rewards / rewards.amin(dim=1, keepdim=True)


@Needs(rewards=(-inf, 0.5), source="a paper, Eq. 2")
def small_rewards(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages


def of_texts(rewards: "Tensor", *, scale: "float" = 1.0) -> "Tensor":
    """As in a file with `from __future__ import annotations`."""
    return rewards


def group(*answers: tuple[bool, int]) -> Group:
    """A group of answers, (correct, length) each."""
    found = Group(1, 0, Problem("p", "", ""), 0, (1, 2))
    for index, (correct, length) in enumerate(answers):
        sample = Sample(SampleKey(1, "p", 0, index), (5,) * length, (-1.0,) * length, True, 0)
        value = 1.0 if correct else -1.0
        found.completions.append(Completion(sample, "", Score(correct, value), value))
        found.completions[-1].reward_shaped = value
    return found


def tokens_of(batch: TokenBatch) -> TokenData:
    nothing, completions = torch.zeros(len(batch.loss_mask)), batch.completion_of_token
    return TokenData(
        completions=completions, completion_tokens=batch.response_lengths[completions], loss_mask=batch.loss_mask,
        rollout_logprobs=nothing, fresh=batch.fresh, old_logprobs=nothing,
    )  # fmt: skip


def odd(a: Tensor, b: Tensor) -> Tensor:
    return a + b


@pytest.mark.parametrize("path", EXAMPLE_PARTS)
def test_an_example_is_one_short_file_whose_hand_worked_number_is_right(path):
    module = importlib.import_module(path.partition(".")[0])
    assert len(Path(module.__file__).read_text().splitlines()) < 40
    tried = doctest.testmod(module)
    assert tried.attempted >= 1
    assert tried.failed == 0
    assert slot_of(path).given[0] in ("rewards", "logprobs", "correct")


SMALL_REWARDS = A + "loss=test_own_parts.small_rewards"
SPARED = (A + "techniques.soft_overlong_punishment=false", "reward.wrong_value=0")


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ((ESTIMATOR + "maxrl.maxrl",), "maxrl.maxrl reward.wrong_value=-1 2602.02710"),
        ((ESTIMATOR + "maxrl.maxrl", "reward.wrong_value=0"), "soft_overlong_punishment punish=right"),
        ((ESTIMATOR + "maxrl.maxrl", *SPARED, A + "kl.beta=0.1", A + "kl.where=reward"), "kl.where=reward"),
        ((ESTIMATOR + "w_reinforce.weighted", *SPARED), "w_reinforce.weighted reward.wrong_value=-1 2506.01347"),
        ((SMALL_REWARDS,), "small_rewards a right answer has 1 Eq. 2"),
        ((SMALL_REWARDS, A + "kl.beta=0.1", A + "kl.where=reward"), "small_rewards kl.where=reward"),
    ],
)
def test_rewards_that_a_part_does_not_work_with_are_refused_by_its_declaration(compose, settings, keys):
    with pytest.raises(ConfigError) as refused:
        check_rewards(compose(*settings))
    assert [key for key in keys.split() if key not in str(refused.value)] == []


def test_every_arm_of_a_study_is_checked_before_its_first_cell(compose):
    with pytest.raises(ConfigError, match=r"maxrl.*wrong_value"):
        check_study([], [compose(), compose(ESTIMATOR + "maxrl.maxrl")])
    with pytest.raises(ConfigError, match=r"failing fails on"):
        check_study([], [compose(), compose(A + "overlong.punish=test_own_parts.failing")])


def test_a_part_is_tried_out_in_groups_of_the_size_and_with_the_rewards_that_it_asks_for(compose):
    reward_shaping(compose(A + "overlong.punish=test_own_parts.third_of_three"))
    objective(compose(ESTIMATOR + "test_own_parts.over_the_spread").algorithm, 8)


def test_a_penalty_that_leaves_rewards_in_the_range_is_accepted(compose):
    check_rewards(compose(ESTIMATOR + "maxrl.maxrl", *SPARED))
    check_rewards(compose(ESTIMATOR + "maxrl.maxrl", "reward.wrong_value=0", A + "overlong.punish=right"))


ONE = (A + "samples_per_prompt=1", A + "techniques.dynamic_sampling=false")


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ((ESTIMATOR + "maxrl.maxrl", *ONE), "samples_per_prompt=1 maxrl.maxrl 2 2602.02710"),
        (ONE, "samples_per_prompt=1 estimator=group 2"),
        ((ESTIMATOR + "test_own_parts.of_three", A + "samples_per_prompt=2"), "of_three 3 Eq. 1"),
        ((ESTIMATOR + "test_own_parts.unwhitened", A + "advantage.whiten=true"), "advantage.whiten unwhitened undoes"),
        ((ESTIMATOR + "gae",), "estimator=gae critic"),
        (("algorithm=ppo", A + "critic=null"), "estimator=gae critic"),
        (("algorithm=ppo", ESTIMATOR + "returns"), "estimator=returns critic=null"),
    ],
)
def test_what_a_part_needs_of_the_algorithm_is_refused_where_it_is_not_there(compose, settings, keys):
    with pytest.raises(ConfigError) as refused:
        objective(compose(*settings).algorithm, 8)
    assert [key for key in keys.split() if key not in str(refused.value)] == []


OWN = "test_own_parts."


def steady(coefficient: float, entropy: float, *, gain: float = 0.5) -> tuple[float, float]:
    return coefficient, gain * entropy


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ((ESTIMATOR + "grup",), "estimator=grup group leave_one_out package.module.function"),
        ((A + "overlong.punish=mixd",), "overlong.punish=mixd mixed"),
        ((A + "correction.kind=tiss",), "correction.kind=tiss tis"),
        ((ESTIMATOR + "nowhere.f",), "estimator=nowhere.f PYTHONPATH"),
        ((ESTIMATOR + OWN + "too_few",), "too_few (3, 4) (4,)"),
        ((ESTIMATOR + OWN + "infinite",), "infinite finite"),
        ((A + "overlong.punish=" + OWN + "failing",), "failing RuntimeError"),
        ((A + "overlong.punish=" + OWN + "by_the_right",), "by_the_right IndexError"),
        ((A + "overlong.punish=" + OWN + "by_the_wrong",), "by_the_wrong IndexError"),
        ((ESTIMATOR + OWN + "with_returns",), "with_returns advantages only"),
        (("algorithm=ppo", ESTIMATOR + OWN + "without_returns"), "without_returns advantages and returns"),
        ((ESTIMATOR + OWN + "of_three", "++algorithm.advantage.options={scal: 2}"), "advantage.options.scal scale"),
        ((ESTIMATOR + OWN + "of_three", "++algorithm.advantage.options={scale: x}"), "options.scale=x float"),
        ((ESTIMATOR + OWN + "of_tokens", "++algorithm.advantage.options={gain: 3}"), "options.gain=3 0 to 2"),
        (("++algorithm.advantage.options={scale: 2}",), "advantage.options.scale group"),
        ((ESTIMATOR + OWN + "of_texts", "++algorithm.advantage.options={scale: x}"), "options.scale=x float"),
        ((A + "loss=sapo.sapo", "++algorithm.loss_options={tau_positive: 200}"), "options.tau_positive=200 0.01 to"),
        ((ESTIMATOR + OWN + "of_no_option",), "of_no_option Needs scal scale"),
        ((ESTIMATOR + OWN + "mistyped",), "mistyped techniqes.token_level_loss=true techniques.token_level_loss"),
        ((ESTIMATOR + OWN + "undecided", A + "clip.dual=null"), "clip.dual=null undecided it has its own"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_by_its_keys(compose, settings, keys):
    config = compose(*settings)
    with pytest.raises(ConfigError) as refused:
        (objective(config.algorithm, 8), reward_shaping(config))
    assert [key for key in keys.split() if key not in str(refused.value)] == []


def idle(config: Config) -> str:
    return "\n".join(idle_settings(config, objective(config.algorithm, 20)))


def test_a_setting_that_a_part_reads_is_no_unread_one(compose):
    epsilon = (A + "advantage.epsilon=0.1", *SPARED)
    assert "advantage.epsilon" not in idle(compose(ESTIMATOR + "maxrl.maxrl", *epsilon))
    assert "advantage.epsilon=0.1" in idle(compose(ESTIMATOR + OWN + "of_three", *epsilon))
    gamma = A + "advantage.gamma=0.9"
    assert "advantage.gamma" not in idle(compose(ESTIMATOR + OWN + "of_tokens", gamma))
    assert "advantage.gamma=0.9" in idle(compose(gamma))
    band = (A + "correction.kind=" + OWN + "by_completion", A + "correction.band=[0.5,2]")
    assert "correction.band[0]=0.5" in idle(compose(*band))  # it names `high` only


def test_a_declared_setting_is_compared_as_a_value_not_as_text(compose):
    part = ESTIMATOR + OWN + "undecided"
    assert "kl.beta=0: no anchor" in idle(compose(part, A + "clip.dual=3"))
    assert "no anchor" not in idle(compose(part, A + "clip.dual=3", A + "kl.beta=0.1"))


def test_settings_and_options_fill_the_parameters_that_name_them(compose):
    kind = A + "correction.kind=" + OWN + "by_completion"
    weights = correction(compose(kind, A + "correction.band=[0,1.5]").algorithm)
    assert weights
    old, completions = torch.zeros(3), torch.tensor([0, 0, 1])
    assert weights(old, old, completions).tolist() == [1, 1, 1.5]
    free = correction(compose(kind).algorithm)
    assert free
    assert free(old, old, completions).tolist() == [1, 1, 2]  # without a band its own default
    quarter = compose(A + "overlong.punish=" + OWN + "half", "++algorithm.overlong.options={share: 0.25}")
    penalty = part_of(PENALTY, quarter.algorithm)
    assert penalty.function(torch.tensor([True, False])).tolist() == [0.25, 0.25]


def test_rewards_outside_a_declared_range_end_the_run_where_only_it_knows_them(compose):
    """A reward function may give anything; the first batch shows it."""
    config = compose(ESTIMATOR + "maxrl.maxrl", *SPARED)
    batch = SimpleNamespace(rewards=torch.tensor([1.0, -0.5]), response_lengths=torch.tensor([1, 1]), turn_rewards=None)
    with pytest.raises(ConfigError, match=r"maxrl.*at least 0.*1 of 2.*-0.5"):
        credit(config.algorithm)(batch, None)  # type: ignore[arg-type]


def test_a_range_that_a_loss_declares_is_held_against_every_batch_too(compose):
    config = compose(SMALL_REWARDS)
    batch = SimpleNamespace(rewards=torch.tensor([0.75, 0.5]), response_lengths=torch.tensor([1, 1]), turn_rewards=None)
    with pytest.raises(ConfigError, match=r"small_rewards.*at most 0.5.*1 of 2.*0.75"):
        credit(config.algorithm)(batch, None)  # type: ignore[arg-type]


def test_an_estimator_that_reads_only_the_values_of_a_critic_gets_the_rewards_of_tokens(compose):
    config = compose("algorithm=ppo", ESTIMATOR + OWN + "of_values", A + "advantage.whiten=false", A + "kl.beta=0")
    groups = [group((True, 3), (False, 2))]
    batch = token_batch(groups, loss_mask(config.algorithm)(groups), policy_version=0)
    earned = credit(config.algorithm)(batch, replace(tokens_of(batch), values=torch.full((5,), 0.25)))
    assert earned.advantages.tolist() == [-0.25, -0.25, 0.75, -0.25, -1.25]
    assert earned.returns is not None
    assert earned.returns.tolist() == [0, 0, 1, 0, -1]


def test_the_file_of_every_part_is_in_the_identity_of_a_run_and_needs_the_users_word(compose):
    named = {
        "advantage.estimator": "maxrl.maxrl", "loss": "sapo.sapo", "overlong.punish": OWN + "half",
        "correction.kind": OWN + "by_completion", "entropy.control": OWN + "steady",
    }  # fmt: skip
    assert {slot.key for slot in SLOTS} == set(named)
    config = compose(*(f"{A}{key}={path}" for key, path in named.items()))
    assert {path for path, _ in sources(config)} == set(named.values())
    assert {A + key for key in named} <= set(CODE)


def test_a_file_that_the_part_imports_from_its_folder_is_in_the_identity_too(compose, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "with_helper.py").write_text("import helper_of_it\nimport torch\ndef f(rewards): return rewards\n")
    helper = tmp_path / "helper_of_it.py"
    config = compose(ESTIMATOR + "with_helper.f")
    digests = []
    for text in ("scale = 1\n", "scale = 2\n"):
        helper.write_text(text)
        digests += [digest for _, digest in sources(config)]
    assert len(set(digests)) == 2


def test_the_slot_of_a_function_is_known_by_its_first_parameters():
    assert slot_of(OWN + "half").key == "overlong.punish"
    assert slot_of(OWN + "by_completion").key == "correction.kind"
    assert slot_of(OWN + "steady").key == "entropy.control"
    with pytest.raises(ConfigError, match=r"odd.*\(a, b\).*\(rewards, \.\.\.\): estimator"):
        slot_of(OWN + "odd")


def test_arms_of_a_part_with_options_are_one_declared_difference(compose):
    """Written in any order, with the options as keys or as a mapping; the arm without them has an empty mapping."""
    spelled = ("@loss=sapo.sapo@loss_options.tau_positive=2", "@loss_options={tau_positive: 2}@loss=sapo.sapo")
    (arm,) = {read_arm("dapo" + settings).name for settings in spelled}
    plain = compose().model_dump(mode="json")
    treated = json.loads(json.dumps(plain))
    treated["algorithm"] |= {"loss": "sapo.sapo", "loss_options": {"tau_positive": 2}}
    declared = set(read_arm(arm).settings)
    assert composed_refusals({"dapo": plain, arm: treated}, declared) == []
    treated["algorithm"]["loss_options"]["tau_negative"] = 3
    (reason,) = composed_refusals({"dapo": plain, arm: treated}, declared)
    assert "loss_options.tau_negative" in reason


def test_a_technique_in_a_users_file_has_a_switch_a_name_and_its_sign_in_reports(compose):
    arms = [
        read_arm(name) for name in ("dapo", "dapo+wiring_parts.HALVED", "naive_grpo", "naive_grpo+wiring_parts.HALVED")
    ]
    assert [arm.name for arm in arms][1] == "dapo+wiring_parts.HALVED"
    assert arms[1].values["algorithm.own_techniques"] == ["wiring_parts.HALVED"]
    assert "algorithm.own_techniques" not in arms[0].values
    design = Design("s", "dapo", tuple(arms[:2]))
    assert design.declared == {"algorithm.own_techniques"}
    found = [one for one in contrasts([arm.name for arm in arms], "dapo") if one.family == "added"]
    assert [one.pair for one in found] == [(arms[1].name, "dapo"), (arms[3].name, "naive_grpo")]
    assert contrast_name(found[0]) == "wiring_parts.HALVED (added to dapo)"
    (shipped,) = contrasts(["dapo", "dapo+overlong_filtering"])
    assert (contrast_name(shipped), family_name(shipped)) == ("overlong filtering (added)", "added to DAPO")
    (without,) = contrasts(["dapo", "dapo-clip_higher"])
    assert (contrast_name(without), family_name(without)) == ("clip-higher", "left out of DAPO")
    config = compose("algorithm.own_techniques=[wiring_parts.HALVED]")
    assert arm_of(config) == "dapo+wiring_parts.HALVED"
    assert [path for path, _ in sources(config)] == ["wiring_parts.HALVED"]
    rows = [{"step": 1, "rollout/groups_mixed_frac": 0.05}]
    (line,) = [text for text in idle_techniques(config.algorithm, rows) if "HALVED" in text]
    assert "groups mixed" in line


def test_a_technique_in_a_users_file_changes_advantages_or_what_carries_loss(compose):
    halved = compose("algorithm.own_techniques=[wiring_parts.HALVED]", A + "advantage.scale_by_std=false").algorithm
    plain = halved.model_copy(update={"own_techniques": ()})
    groups = [group((True, 3), (False, 6), (False, 2), (True, 7))]
    batch = token_batch(groups, loss_mask(plain)(groups), policy_version=0)
    earned = [credit(algorithm)(batch, tokens_of(batch)).advantages for algorithm in (plain, halved)]
    assert torch.equal(earned[1], torch.where(earned[0] > 0, earned[0] / 2, earned[0]))
    assert (earned[0] > 0).any()
    short = plain.model_copy(update={"own_techniques": ("wiring_parts.SHORT",)})
    assert loss_mask(short)(groups).tolist() == [True] * 3 + [False] * 6 + [True] * 9  # wrong, and of six tokens


def failing_rule(lengths: Tensor, truncated: Tensor, correct: Tensor) -> Tensor:
    raise RuntimeError("no such thing")


def numbers(lengths: Tensor, truncated: Tensor, correct: Tensor) -> Tensor:
    return lengths


FAILING_RULE, NUMBERS = (replace(SHORT, keeps=rule) for rule in (failing_rule, numbers))


@pytest.mark.parametrize(
    ("record", "keys"),
    [("FAILING_RULE", "failing_rule RuntimeError"), ("NUMBERS", "numbers a bool for each [3, 8, 5]")],
)
def test_a_rule_of_which_completions_carry_loss_is_tried_out_before_anything_is_sampled(compose, record, keys):
    with pytest.raises(ConfigError) as refused:
        check_study([], [compose(f"algorithm.own_techniques=[{OWN}{record}]")])
    assert [key for key in ("own_techniques", *keys.split()) if key not in str(refused.value)] == []


@pytest.mark.parametrize("path", ["wiring_parts.halved", "wiring_parts.NOTHING", "nowhere.X"])
def test_what_is_no_technique_is_refused_by_its_path(compose, path):
    config = compose(f"algorithm.own_techniques=[{path}]")
    with pytest.raises(ConfigError, match=rf"own_techniques.*{path.partition('.')[0]}"):
        objective(config.algorithm, 8)


SMALL = (
    "task.max_prompt_tokens=8", "task.max_response_tokens=4", "algorithm.num_prompts=4",
    "algorithm.minibatch_prompts=2", "algorithm.optimizer.lr=1e-2", "budget.steps=2", "study.until=null",
    "study.seeds=[0]", "study.underpowered=true", "evaluation.every=0", "study.pilot=true",
)  # fmt: skip


def ablate(folder: Path, *arguments: str):
    return run_cli(*arguments, cwd=folder, module="dapo_lit.ablate")


def test_an_estimator_with_an_option_is_ablated_from_a_folder_with_its_file_and_nothing_else(cache, tmp_path):
    source = (EXAMPLES / "maxrl.py").read_text()
    own = source.replace("epsilon: float)", "epsilon: float, scale: float = 1.0)").replace(
        "return (", "return scale * ("
    )
    (tmp_path / "my_file.py").write_text(own)
    sums = ((1, 2), (2, 2), (3, 1), (4, 3))
    (tmp_path / "sums.csv").write_text("question,answer\n" + "".join(f"{a}+{b}=,{a + b}\n" for a, b in sums))
    model = str(RunComponents(composed("+experiment=four_sums")).policy_folder)
    command = ("my_file.maxrl", "--option", "scale=0.5", "--model", model, "--data", "sums.csv", *SMALL)
    refused = ablate(tmp_path, *command)
    assert refused.returncode == 2
    assert "reward.wrong_value=-1" in refused.stderr
    assert "MaxRL, arXiv 2602.02710" in refused.stderr
    assert not [*tmp_path.glob("runs/**/metrics.jsonl")]  # before the probe
    spared = ("--on", "dapo-soft_overlong_punishment", "reward.wrong_value=0")
    done = ablate(tmp_path, *command, *spared)
    assert done.returncode == 0, done.stderr
    study = tmp_path / "runs" / "ablate_maxrl_sums"
    plan = json.loads((study / "study.json").read_text())[0]["plan"]
    reference = "dapo-soft_overlong_punishment"
    treated = f"{reference}@advantage.estimator=my_file.maxrl@advantage.options.scale=0.5"
    assert plan["reference"] == reference
    runs = {run.parents[1].name for run in study.glob("*/seed_*/DONE.json")}
    assert runs == {reference, treated}
    record = json.loads((study / treated / "seed_0" / "run.json").read_text())
    assert "source my_file.maxrl" in record["inputs"]
    assert "my_file.maxrl with scale 0.5" in done.stdout
