"""Runs over several turns: what a run without an environment keeps, and that nothing of an episode is lost."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scripted_engine import ScriptedEngine
from small_runs import RUN, Run, rows, same_run, stop_in, untimed, weights

from dapo_lit.build.components import RunComponents
from dapo_lit.build.environment import turn_with_marks, with_environment
from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import EVALUATION_STEP, EngineError, Sample, SampleKey
from dapo_lit.engines.torch_engine.engine import DecodingBatch
from dapo_lit.environments.running import UserEnvironment
from dapo_lit.policy.base import character_tokenizer
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.runs.checkpoint_files import complete
from dapo_lit.runs.rollout_table import rollouts_file
from dapo_lit.train import train
from dapo_lit_tools.replays.recorded_step import open_recording, replay

ENVIRONMENTS = Path(__file__).parents[1] / "environments"
SETTINGS = (
    "turns.environment=user_environments.speaks", "turns.max_turns=3", "turns.max_observation_tokens=5",
    "turns.deadline_s=60", "budget.steps=3", "preflight=false", "logger.rollouts_every=1", "evaluation.every=1",
)  # fmt: skip
CARRIED = ("algorithm.dynamic_sampling.carry_over=all", "rollout.max_batch_size=10")


@pytest.fixture(autouse=True)
def _environments(monkeypatch):
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture
def whole(whole_runs, compose) -> Path:
    """The folder of an uninterrupted run with turns, recorded at step 2."""
    if not (whole_runs / RUN).exists():
        train(compose(*SETTINGS, *CARRIED, f"runs_dir={whole_runs}", "replay.record=[2]"), [])
    return whole_runs / RUN


def table(run: Path, step: int) -> pd.DataFrame:
    return pd.read_parquet(rollouts_file(run, step))


def test_an_environment_that_never_speaks_changes_no_bit_of_a_run(compose, tmp_path):
    for name, environment in (("plain", "null"), ("silent", "user_environments.silent")):
        settings = (*SETTINGS, f"turns.environment={environment}", f"runs_dir={tmp_path / name}")
        train(compose(*settings), [])
    plain, silent = tmp_path / "plain" / RUN, tmp_path / "silent" / RUN
    added = [{key for key in row if key.startswith("turns/")} for row in rows(silent)]
    assert [bool(keys) for keys in added] == [False, True, True, True]
    # Of the engine's log-probs: with AVX-512 a product of another number of rows may round otherwise.
    sampled = ("rollout/entropy", "rollout/prob_mean")
    for row, other in zip(untimed(silent), untimed(plain), strict=True):
        of_sampler = {key: other.pop(key) for key in sampled if key in other}
        assert {key: row.pop(key) for key in of_sampler} == pytest.approx(of_sampler, rel=1e-7)
        assert {key: value for key, value in row.items() if not key.startswith("turns/")} == other
    assert all((weights(plain)[name] == tensor).all() for name, tensor in weights(silent).items())
    for step in (1, 2, 3):
        one, other = table(plain, step), table(silent, step)
        added = {"observation_ids", "observation_places", "ended_by", "turn_rewards", "turns", "observations"}
        assert set(other) - set(one) == added
        assert [list(turns) for turns in other["turns"]] == [[text] for text in other["response"]]
        assert [row.tolist() for row in other["response_ids"]] == [row.tolist() for row in one["response_ids"]]
        assert other["response"].tolist() == one["response"].tolist()


def test_a_run_trains_on_episodes_whose_log_probs_are_the_trainers(whole):
    found = rows(whole)
    assert all(row["mismatch/prob_diff_max"] < 1e-5 for row in found[1:])
    assert all(row["turns/num_mean"] > 1.2 for row in found[1:])
    for row in found[1:]:
        ends = [value for key, value in row.items() if key.startswith("turns/ended_by_")]
        assert sum(ends) == pytest.approx(1)
    one = table(whole, 1)
    assert set(one["ended_by"]) >= {"environment", "turns", "tokens", "observation_tokens"}
    for _, row in one.iterrows():
        assert len(row["observation_ids"]) == len(row["observation_places"]) <= 5
        assert len(row["rollout_logprobs"]) == len(row["response_ids"]) <= 20
        assert row["truncated"] == (row["ended_by"] != "environment")
        spoken = [*row["observations"], ""]
        assert "".join(text for pair in zip(row["turns"], spoken, strict=True) for text in pair) == row["response"]
        given = row["turn_rewards"].tolist()
        assert set(given) <= {-1 / 4096, 0.0, 1 / 4096}
        assert len(row["turns"]) - len(given) in (0, int(row["ended_by"] == "tokens"))  # a turn that was cut off
        assert row["reward_shaped"] == row["reward"] + sum(given) + row["length_penalty"]
    # Lengths and what is counted of tokens are the policy's.
    assert found[1]["turns/reward_mean"] == pytest.approx(one["turn_rewards"].map(sum).mean())
    counted = one[one["examined"] & (one["submitted_step"] == 1)]
    assert found[1]["rollout/length_mean"] == pytest.approx(counted["response_ids"].map(len).mean())
    logprobs = np.concatenate(counted["rollout_logprobs"].tolist())
    assert found[1]["rollout/entropy"] == pytest.approx(-logprobs.mean())


@pytest.mark.parametrize("setting", ["rollout.steps_ahead=1", "policy.lora={rank: 4, alpha: 4}"])
def test_episodes_are_sampled_ahead_and_by_adapters(compose, tmp_path, setting):
    """As far as trainer and engine have the same weights: ahead, that is the first step only."""
    train(compose(*SETTINGS, setting, f"runs_dir={tmp_path}"), [])
    found = rows(tmp_path / RUN)[1:]
    assert all(row["turns/num_mean"] > 1.2 for row in found)
    apart = [row["mismatch/prob_diff_max"] for row in found if row["mismatch/prob_diff_max"] is not None]
    assert len(apart) == (1 if "ahead" in setting else 3)
    assert max(apart) < 1e-5


@pytest.mark.parametrize("step", [2, 3])
def test_a_run_that_was_stopped_between_turns_goes_on_as_one_that_was_not(whole, compose, tmp_path, monkeypatch, step):
    settings = (*SETTINGS, *CARRIED, f"runs_dir={tmp_path}", "replay.record=[2]")
    with monkeypatch.context() as patch:
        stop_in(step, patch)
        with pytest.raises(SystemExit):
            train(compose(*settings), [])
    assert len(rows(tmp_path / RUN)) == step
    if step == 3:  # no group of the first step is interrupted after its first turn
        state = torch.load(complete(tmp_path / RUN / "checkpoints")[-1], weights_only=False)["RolloutDataModule"]
        partials = [partial for group in state["collector"]["carried"] for partial in group.partial.values()]
        assert any(len(partial.observations) for partial in partials)
    train(compose(*settings, "resume=true"), [])
    assert same_run(tmp_path / RUN, whole)


def test_killed_workers_lose_no_turn(whole, compose, tmp_path, monkeypatch):
    ask, asked = UserEnvironment.ask, []

    def kills(self: UserEnvironment, *given: object) -> None:
        ask(self, *given)
        asked.append(given)
        workers = list(self._supervisor.pids())[1:] if self._supervisor else []
        if len(asked) % 97 == 0 and workers:
            os.kill(workers[0], 9)

    monkeypatch.setattr(UserEnvironment, "ask", kills)
    train(compose(*SETTINGS, *CARRIED, f"runs_dir={tmp_path}", "replay.record=[2]"), [])
    assert len(asked) > 3 * 97
    assert same_run(tmp_path / RUN, whole)


def test_an_engine_that_fails_in_the_middle_of_episodes_loses_nothing(whole, compose, tmp_path, monkeypatch):
    settings = (*SETTINGS, *CARRIED, f"runs_dir={tmp_path}", "replay.record=[2]")
    step = DecodingBatch.step

    def fails(self: DecodingBatch) -> list[Sample]:
        requests = [self._row_requests[row] for row in np.flatnonzero(self._alive)]
        if any(len(request.partial.observations) for request in requests) and requests[0].key.step == 2:
            raise EngineError("the engine is gone")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(DecodingBatch, "step", fails)
        with pytest.raises(EngineError, match="the engine is gone"):
            train(compose(*settings), [])
    assert len(rows(tmp_path / RUN)) == 2
    train(compose(*settings, "resume=true"), [])
    assert same_run(tmp_path / RUN, whole)


def test_a_recorded_step_of_episodes_is_replayed_bit_for_bit(whole):
    given = {"user_environments.speaks"}
    found = open_recording(whole, 2, given)
    again = replay(found, found.config)
    before = {k: v for k, v in rows(whole)[2].items() if k.startswith(("loss/", "optim/", "clip/", "policy/"))}
    assert {key: again.metrics[key] for key in before} == before
    assert any(len(sample.observations) for sample in found.samples.values())


def test_an_episode_whose_environment_fails_has_no_verdict(compose, tmp_path):
    settings = (*SETTINGS, "turns.environment=user_environments.breaks", "reward.max_error_frac=1")
    run = Run(compose(*settings, "budget.steps=1", "evaluation.every=0", f"runs_dir={tmp_path}"))
    run.fit()
    (row,) = [row for row in rows(run.folder.path) if row["step"] == 1]
    assert 0 < row["turns/ended_by_failed_frac"] < 1
    assert row["reward/verifier_error_frac"] == pytest.approx(row["turns/ended_by_failed_frac"])
    found = table(run.folder.path, 1)
    failed = found["ended_by"] == "failed"
    assert found["error"].notna().equals(failed)
    assert found.loc[failed, "error"].str.contains("out of order").all()
    assert found.loc[failed, ["correct", "reward", "advantage"]].isna().all(axis=None)
    assert "out of order" in (run.folder.path / "reward_errors.txt").read_text()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["evaluation.benchmarks=[chain_sum_heldout]"], "benchmarks"),
        (["turns.environment=calculater"], "no such environment"),
        (["turns.template=x"], "template"),
        (["turns.max_turns=0"], "max_turns"),
    ],
)
def test_what_does_not_go_together_with_turns_is_refused_by_name(compose, settings, named):
    with pytest.raises(ConfigError, match=named):
        compose("turns.environment=calculator", *settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["turns.environment=nowhere.at_all"], "nowhere"),
        (["turns.environment=lookup"], "table"),
        (["turns.environment=calculator", "turns.max_observation_tokens=1000"], "max_observation_tokens"),
    ],
)
def test_what_a_run_lacks_for_its_turns_is_said_before_the_first_step(compose, settings, named):
    with pytest.raises(ConfigError, match=named):
        Run(compose("turns.max_observation_tokens=5", *settings, "preflight=false")).fit()


def test_an_answer_is_looked_for_in_the_policys_last_turn():
    problem = RewardProblem("p", "", "12")
    with Verifier(rule="numeric", extraction="hash") as verifier:
        for turns, right in ((("#12", "#13"), False), (("#13", "#12"), True), (("12*1=", "so"), False), ((), True)):
            (score,) = verifier.score([(replace(problem, turns=turns), "#13 #12")])
            assert score.correct == right


def test_an_environment_is_asked_about_the_problem_of_its_episode_whatever_its_id(compose, tmp_path):
    """Files of one name, whose problems have no ids: problems-1, problems-2, ... in both."""
    for place, answer in (("train", 7), ("held", 8)):
        (tmp_path / place).mkdir()
        lines = [{"problem": f"{answer}+{n}=", "answer": str(answer + n)} for n in range(4)]
        (tmp_path / place / "problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = (f"task.path={tmp_path}/train/problems.jsonl", f"task.eval_path={tmp_path}/held/problems.jsonl")
    parts = RunComponents(compose(*SETTINGS, "task=file", "task.template=plain", "policy.path=unused", *files))
    train, heldout = parts.problems.train, parts.problems.heldout
    assert train[1].id == heldout[1].id
    engine = with_environment(
        ScriptedEngine(lambda key: None), parts.config, parts.problems, character_tokenizer("0"), str, 1, Ranks(),
        lambda: False,
    )  # fmt: skip
    for step, problem in ((1, train[1]), (EVALUATION_STEP, heldout[1])):
        assert engine.problem_of(SampleKey(step, problem.id, 0, 0)) is problem
    engine.close()


def test_a_users_environment_reads_special_tokens_of_a_turn_but_not_the_one_that_ended_it():
    tokenizer = character_tokenizer("abcd")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<call>"]})
    ids = [*tokenizer.encode("ab<call>cd"), tokenizer.eos_token_id]
    assert turn_with_marks(tokenizer, ids) == "ab<call>cd"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "abcd"
