"""One meaning of "the same experiment": every key's tag, and what the hash and the comparison make of it."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from ablations.read.guard import composed_refusals
from ablations.trainer import flatten, same_experiment
from dapo_lit.config import parse
from dapo_lit.config.identity import (
    config_hash,
    differences,
    identity,
    kind_of,
    with_defaults,
)
from dapo_lit.config.sections import EXECUTION, SCIENCE
from dapo_lit.config.shipped import default_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_a_key_below_a_free_mapping_has_its_kind_and_an_unknown_key_is_science():
    assert kind_of("task.options.max_terms") is SCIENCE
    assert kind_of("trainer.threads") is EXECUTION
    assert kind_of("a_key_of_a_later_version") is SCIENCE


def test_the_config_hash_notices_science_and_horizon_and_nothing_else(compose):
    def hash_of(*overrides: str) -> str:
        return config_hash(compose(*overrides).model_dump(mode="json"))

    same = [
        "study_name=other", "logger.progress=plain", "resume=auto", "replay.record=[1]", "trainer.threads=2",
        "trainer.micro_batch_tokens=77", "rollout.max_batch_size=3", "rollout.vllm.server.urls=[http://a:1]",
    ]  # fmt: skip
    other = ["seed=1", "algorithm.clip.high=0.3", "budget.steps=7", "trainer.fp32_head=true", "policy.dtype=bfloat16"]
    assert {hash_of(override) for override in same} == {hash_of()}
    assert len({hash_of(), *(hash_of(override) for override in other)}) == 1 + len(other)


def test_where_every_micro_batch_has_its_own_denominator_its_size_is_science(compose):
    def keys(*overrides: str) -> dict:
        small, large = (
            identity(compose(f"trainer.micro_batch_tokens={n}", *overrides).model_dump(mode="json")) for n in (64, 128)
        )
        return differences(small, large)

    assert keys() == {}
    assert keys("algorithm.token_level_denominator=microbatch") == {"trainer.micro_batch_tokens": [64, 128]}


def test_where_groups_are_carried_over_the_number_that_is_sampled_at_once_is_science(compose):
    def keys(carry_over: str) -> dict:
        few, many = (
            identity(compose(f"rollout.max_batch_size={n}", carry_over).model_dump(mode="json")) for n in (12, 512)
        )
        return differences(few, many)

    carried = "algorithm.dynamic_sampling.carry_over"
    assert keys(f"{carried}=none") == {}
    assert keys(f"{carried}=finished") == keys(f"{carried}=all") == {"rollout.max_batch_size": [12, 512]}


def test_the_default_run_is_read_from_the_files_as_it_is_composed(compose):
    composed = compose(small=False).model_dump(mode="json")
    assert differences(flatten(composed), flatten(default_run()))["runs_dir"][1] == "runs"
    assert flatten({**composed, "runs_dir": "runs"}) == {
        key: value for key, value in flatten(default_run()).items() if not key.startswith("hydra.")
    }


def test_keys_that_an_older_config_lacks_are_filled_in(compose):
    tree = compose().model_dump(mode="json")
    whole = config_hash(tree)
    del tree["rollout"]["steps_ahead"], tree["algorithm"]["correction"]
    filled = with_defaults(tree)
    assert filled["algorithm"]["correction"] == default_run()["algorithm"]["correction"]
    assert parse(filled).rollout.steps_ahead == 0
    assert config_hash(tree) == whole


def test_every_packed_run_of_any_version_can_be_read():
    trees = [yaml.safe_load(file.read_text()) for file in EXPERIMENTS.rglob("config.yaml")]
    packed = [pd.read_parquet(file, columns=["config"])["config"] for file in EXPERIMENTS.rglob("cells.parquet")]
    trees += [json.loads(text) for text in pd.concat(packed)]
    assert len(trees) > 200
    for tree in trees[::7]:
        parse(with_defaults(tree))


def test_runs_are_compared_by_their_configs_unless_their_hashes_agree(compose):
    tree, other = (compose(f"algorithm.clip.high={high}").model_dump(mode="json") for high in (0.28, 0.3))
    old, new = {"config_hash": "a"}, {"config_hash": "b"}
    assert same_experiment(old, tree, new, tree)
    assert not same_experiment(old, tree, new, other)
    assert same_experiment(new, tree, new, other)


@pytest.mark.parametrize("key", ["policy.architecture", "task.base"])
def test_a_free_mapping_is_compared_as_a_whole_when_filled(compose, key):
    tree = compose(small=False).model_dump(mode="json")
    group, name = key.split(".")
    value = tree[group].pop(name)
    assert with_defaults(tree)[group][name] == value


def test_runs_that_started_from_other_weights_of_one_recipe_are_not_the_same_experiment(compose):
    tree = compose().model_dump(mode="json")

    def repeats(one: str | None, other: str | None) -> bool:
        start, again = ({"config_hash": "a", "base_weights": weights} for weights in (one, other))
        return same_experiment(start, tree, again, tree)

    assert repeats("1", "1")
    assert repeats("1", None)  # a run of an earlier version recorded none
    assert not repeats("1", "2")


def test_a_study_may_compare_carrying_over_with_none(compose):
    none, finished = (
        compose(f"algorithm.dynamic_sampling.carry_over={value}").model_dump(mode="json")
        for value in ("none", "finished")
    )
    declared = ["algorithm.dynamic_sampling.carry_over"]
    assert composed_refusals({"none": none, "finished": finished}, declared) == []
    fewer = finished | {"rollout": finished["rollout"] | {"max_batch_size": 3}}
    (reason,) = composed_refusals({"none": none, "finished": finished, "fewer": fewer}, declared)
    assert "rollout.max_batch_size" in reason
