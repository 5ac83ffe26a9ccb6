"""1, 2 and 4 processes are one run: the same groups, metrics and weights. Gradients: test_equivalence_matrix.py.

The case (ranks_case.py) trains two steps with unequal lengths, dynamic sampling and carried-over groups, and fewer
micro-batches on some ranks than on others.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import run_cli
from commands import export_to
from ranks_case import ADAPTERS, BESIDE
from transformers import AutoModelForCausalLM

from ablations.files.layout import before_step
from dapo_lit.data.problem import Problem
from dapo_lit.policy.lora import EDGE
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.records import Group
from dapo_lit.runs.checkpoint_files import damage_reason
from dapo_lit.runs.checkpoint_weights import policy_weights

ON_TWO_RANKS = [(case, 2) for case in ("tied", "ahead", *BESIDE)]
ON_FOUR_RANKS = [("tied", 4)]


@pytest.fixture(scope="module")
def runs(cache, made_once) -> dict:
    """(case, size) -> what every rank came to."""

    def make(out: Path) -> None:
        done = run_cli(str(out), cwd=Path(__file__).parents[1], module="lit.ranks_case", timeout=1500)
        assert done.returncode == 0, done.stdout + done.stderr

    out = made_once("ranks", make)
    ran = [*((case, 1) for case, _ in ON_TWO_RANKS), *ON_TWO_RANKS, *ON_FOUR_RANKS, ("verl", 2), ("saved", 1)]
    ran += [(f"{case}_resumed", 1) for case in BESIDE]
    found: dict = {
        (case, size): [torch.load(out / f"{case}_{size}_{rank}.pt", weights_only=False) for rank in range(size)]
        for case, size in ran
    }
    return found | {"folder": out}


WHATEVER_IS_UNDER_WAY = {
    "sampling/keep_rate", "sampling/groups_carried_in", "sampling/staleness_max", "sampling/length_accepted_p10",
    "sampling/length_accepted_p50", "sampling/length_accepted_p90",
}  # fmt: skip
"""Metrics of collection that do not depend on how many groups were begun."""


@pytest.mark.parametrize(("case", "size"), [*ON_TWO_RANKS, *ON_FOUR_RANKS])
def test_the_accepted_groups_and_their_tokens_are_those_of_one_process_on_every_rank(runs, case, size):
    (alone,) = runs[case, 1]
    for step, record in alone["steps"].items():
        assert len({len(ids) for ids in record["ids"]}) > 3  # unequal lengths, or the test says nothing
        for rank in runs[case, size]:
            assert rank["steps"][step]["groups"] == record["groups"]
            assert rank["steps"][step]["ids"] == record["ids"]
            # Several ranks learn later than one what has ended: other groups were begun ahead.
            for key in record["collected"].keys() & WHATEVER_IS_UNDER_WAY:
                assert rank["steps"][step]["collected"][key] == record["collected"][key], key


@pytest.mark.parametrize(("case", "size"), [*ON_TWO_RANKS, *ON_FOUR_RANKS])
def test_metrics_evaluations_and_weights_after_two_steps_are_those_of_one_process(runs, case, size):
    (alone,) = runs[case, 1]
    for rank in runs[case, size]:
        for step, record in alone["steps"].items():
            metrics = rank["steps"][step]["metrics"]
            assert metrics.keys() == record["metrics"].keys()
            for key, value in record["metrics"].items():
                same = metrics[key] is None if value is None else metrics[key] == pytest.approx(value, 1e-4, 1e-6)
                assert same, (key, value, metrics[key])
            for name, tensor in record["weights"].items():
                torch.testing.assert_close(rank["steps"][step]["weights"][name], tensor, rtol=1e-4, atol=2e-5)
        evaluated = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in rank["rows"]]
        assert evaluated[0] == pytest.approx(
            {k: v for k, v in alone["rows"][0].items() if k.startswith("eval/")}, rel=1e-6
        )
        assert [row["rollout/accuracy"] for row in rank["rows"][1:]] == [
            row["rollout/accuracy"] for row in alone["rows"][1:]
        ]


def test_the_fingerprint_of_a_base_is_that_of_one_process_where_a_shard_has_fewer_values_than_it_takes(runs):
    (alone,), (first, _) = runs["lora", 1], runs["lora", 2]
    assert first["steps"][1]["weights"]["model.layers.0.self_attn.k_proj.bias"].numel() // 2 < EDGE
    assert first["base_fingerprint"] == alone["base_fingerprint"] is not None


def test_an_experiment_of_the_papers_size_runs_shrunken_on_two_ranks(runs):
    first, second = runs["verl", 2]
    assert sorted(first["steps"]) == [1, 2]
    for step, record in first["steps"].items():
        assert record["metrics"]["loss/policy"] is not None
        for name, tensor in record["weights"].items():
            assert torch.equal(second["steps"][step]["weights"][name], tensor), name
    # 3 x num_prompts at once, whatever the keep rate says
    assert first["steps"][1]["collected"]["sampling/groups_generated"] % 18 == 0


@pytest.mark.parametrize("case", BESIDE)
def test_a_run_of_two_ranks_with_its_value_model_or_adapters_goes_on_with_one(runs, case):
    (alone,) = runs[f"{case}_resumed", 1]
    assert list(alone["steps"]) == [3]
    before = runs[case, 2][0]["steps"][2]["weights"]
    after = alone["steps"][3]["weights"]
    assert alone["steps"][3]["groups"] != runs[case, 2][0]["steps"][2]["groups"]
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert any(name.startswith("critic.") for name in changed) == (case != "lora")
    assert any("q_proj" in name for name in changed)
    for name, tensor in after.items():  # two updates away, so that what was saved is what it went on from
        assert (tensor - before[name]).abs().max() < 0.02, name


def test_a_policy_that_is_saved_before_its_first_update_is_trained_like_one_that_is_not(runs):
    (saved,), (unsaved,) = runs["saved", 1], runs["tied", 1]
    assert before_step(runs["folder"] / "saved" / "1", 1).exists()
    for step, record in unsaved["steps"].items():
        assert saved["steps"][step]["metrics"] == record["metrics"]
        for name, tensor in record["weights"].items():
            assert torch.equal(saved["steps"][step]["weights"][name], tensor), name


def test_a_policy_stays_as_it_is_while_the_value_model_warms_up_alone(runs):
    for rank in runs["warmup", 2]:
        first, second = (rank["steps"][step]["weights"] for step in (1, 2))
        changed = {name for name, tensor in second.items() if not torch.equal(tensor, first[name])}
        assert changed
        assert all(name.startswith("critic.") for name in changed)


def test_a_sharded_checkpoint_is_whole_listed_and_read_by_one_process(runs, tmp_path):
    saved = runs["folder"] / "tied" / "2" / "checkpoints" / "step_000002.ckpt"
    assert {"meta.pt", "__0_0.distcp", "__1_0.distcp"} <= {file.name for file in saved.iterdir()}
    assert damage_reason(saved) is None
    weights = policy_weights(saved)
    for name, tensor in runs["tied", 2][0]["steps"][2]["weights"].items():
        assert torch.equal(weights[name], tensor), name
    copy = shutil.copytree(saved.parent.parent, tmp_path / "run") / "checkpoints" / saved.name
    (copy / "__1_0.distcp").unlink()
    assert damage_reason(copy) == "checkpoints/step_000002.ckpt/__1_0.distcp is missing"


@pytest.mark.parametrize(("case", "options"), [("tied", ()), ("lora", ADAPTERS)])
def test_a_sharded_checkpoint_is_exported_by_one_process(runs, compose, tmp_path, case, options):
    run = runs["folder"] / case / "2"
    (run / "config.yaml").write_text(json.dumps(compose(*options).model_dump(mode="json")))
    export_to(tmp_path / "out", run / "checkpoints" / "step_000002.ckpt")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, tensor in runs[case, 2][0]["steps"][2]["weights"].items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_groups_are_dealt_out_in_submission_order_and_none_is_left_out():
    groups = [Group(1, index, Problem("p", "?", "1"), 0, (1,)) for index in range(7)]
    dealt = [Ranks(rank, 3).own(groups) for rank in range(3)]
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]
    shared = [Ranks(rank, 4, per_engine=2) for rank in range(4)]  # two engines of two ranks each
    assert [ranks.own(groups) for ranks in shared] == [[0, 2, 4, 6]] * 2 + [[1, 3, 5]] * 2
    assert [ranks.leads_engine for ranks in shared] == [True, False, True, False]
