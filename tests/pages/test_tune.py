"""docs/examples/tune.py: what it keeps, that a kill loses nothing, and its whole way with runs of seconds."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import tune
from jsonschema import Draft202012Validator

from ablations.commands import decide

WORTH = {"clip-higher": 0.05, "dynamic sampling": -0.04, "half the rate": 0.02}


class Made(tune.Tuning):
    """Cells are made up: each change adds what it is worth, seeds differ by far more, runs by a little."""

    ran: list[tuple[str, int]]
    fails_after: int | None = None

    def run(self, arm, seed):
        if self.fails_after is not None and len(self.ran) >= self.fails_after:
            raise KeyboardInterrupt
        keys = {key for key, value in arm.values.items() if value is True} | {*arm.settings}
        worth = sum(gain for name, gain in WORTH.items() if {*tune.CHANGES[name]} <= keys)
        noise = 0.004 * ((len(arm.name) * 7 + seed * 3) % 5 - 2)
        row = {
            "arm": arm.name,
            "seed": seed,
            "metric": "m",
            "value": 0.3 + 0.05 * seed + worth + noise,
            "seconds": 60.0,
        }
        with self.lock:
            tune.append(self.out / "cells.jsonl", row)
            self.cells[arm.name, seed] = row
            self.ran.append((arm.name, seed))


def made(folder, hours=10.0, fails_after=None):
    loop = Made(folder, ["+regime=joint"], 1, 3600 * hours, range(6))
    loop.ran, loop.fails_after = [], fails_after
    return loop


CHANGES = {name: tune.CHANGES[name] for name in WORTH}


def test_it_keeps_what_gains_drops_what_loses_and_pays_for_an_incumbents_run_once(tmp_path):
    loop = made(tmp_path)
    end = tune.arm_of(tune.tune(loop, CHANGES, "decide", 0))
    assert end.name == "naive_grpo+clip_higher@optimizer.lr=0.0001"
    assert len(loop.ran) == len({*loop.ran}) == len(loop.cells)
    rows = tune.rows(tmp_path / "decisions.jsonl")
    assert [row["change"] for row in rows if row["action"] == "keep"] != []
    assert rows[-1]["change"] == "dynamic sampling (round 2)"  # once more around the new incumbent


def test_its_ledger_is_one_that_decide_reads(tmp_path, capsys):
    tune.tune(made(tmp_path), CHANGES, "decide", 0)
    capsys.readouterr()
    assert decide.main([str(tmp_path / "ledger.jsonl"), "--json"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads((Path(decide.__file__).parents[1] / "schemas/decide.json").read_text())).validate(
        found
    )
    assert {"clip-higher", "half the rate"} <= {row["change"] for row in found["changes"]}


@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_kill_changes_neither_decisions_nor_runs(tmp_path, after):
    whole, cut = made(tmp_path / "whole"), made(tmp_path / "cut", fails_after=after)
    expected = tune.tune(whole, CHANGES, "decide", 0)
    with pytest.raises(KeyboardInterrupt):
        tune.tune(cut, CHANGES, "decide", 0)
    with (tmp_path / "cut" / "ledger.jsonl").open("a") as torn:
        torn.write('{"change": "clip-hi')
    again = made(tmp_path / "cut")
    assert tune.tune(again, CHANGES, "decide", 0) == expected
    assert not {*cut.ran} & {*again.ran}
    for name in ("ledger.jsonl", "decisions.jsonl", "cells.jsonl"):
        assert tune.rows(tmp_path / "cut" / name) == tune.rows(tmp_path / "whole" / name), name


def test_the_budget_ends_it_and_another_order_offers_in_another_order(tmp_path):
    loop = made(tmp_path / "short", hours=5 / 60)
    tune.tune(loop, CHANGES, "decide", 0)
    assert loop.spent < 60 * (5 + 2 * 6)  # what was under way ends
    for rule, most in (("decide", 3 + 2 * 6), ("one-run", 3)):
        loop = made(tmp_path / rule)
        loop.runs = 3
        tune.tune(loop, CHANGES, rule, 0)
        assert 3 <= len(loop.ran) <= most
    orders = set()
    for order in range(4):
        tune.tune(made(tmp_path / str(order)), CHANGES, "decide", order)
        orders.add(tune.rows(tmp_path / str(order) / "decisions.jsonl")[0]["change"])
    assert len(orders) > 1


def test_one_run_a_change_takes_a_lucky_seed_for_a_gain(tmp_path):
    """Seeds differ by 5 points and their levels rise, so whatever is tried last looks best."""
    loop = made(tmp_path, hours=6 / 60)
    end = tune.arm_of(tune.tune(loop, CHANGES, "one-run", 0))
    assert "dynamic_sampling" in end.on
    assert all(row["pairs"] == 1 for row in tune.rows(tmp_path / "decisions.jsonl"))


def test_only_fresh_seeds_can_claim(tmp_path):
    loop = made(tmp_path)
    end = tune.arm_of(tune.tune(loop, CHANGES, "decide", 0))
    before = {seed for _, seed in loop.cells}
    checked = tune.check(loop, tune.arm_of({}), end, 6)
    assert checked is not None
    assert checked["claim"] == {"verdict": "gain", "at_pairs": 6, "next_look": None}
    assert not before & {seed for _, seed in loop.ran[-12:]}
    text = tune.page(loop, tune.arm_of({}), end, checked, 60.0, "typed")
    assert "gain by the exact" in text
    assert "Nothing was checked" in tune.page(loop, tune.arm_of({}), end, None, 60.0, "typed")
    assert text.count("| kept |") == 2


def test_tuning_shares_base_policies_and_the_check_does_not(tmp_path):
    loop = tune.Tuning(tmp_path, [], 1, 3600.0, range(2000, 2012), bases=12)
    assert [loop.base_of(seed) for seed in (2000, 2011, 2012, 2025)] == [2000, 2011, 2000, 2001]
    assert loop.base_of(tune.CHECK_SEEDS + 5) == tune.CHECK_SEEDS + 5
    assert made(tmp_path).base_of(17) == 17


def test_every_change_is_a_key_of_a_training():
    from dapo_lit.cli.command import compose

    for settings in tune.CHANGES.values():
        arm = tune.arm_of(settings)
        compose("+regime=joint", *(tune.setting(key, value) for key, value in arm.values.items()))


def test_the_whole_way_with_runs_of_seconds(tmp_path, monkeypatch, capsys):
    keys = ("+experiment=four_sums", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2", "budget.steps=2",
            "evaluation.samples=2", "evaluation.final_samples=2")  # fmt: skip
    out = tmp_path / "tuned"
    given = [str(out), "--hours", "1", "--pairs", "1", "--workers", "2", "--only", "clip-higher", "--check", "0", *keys]
    assert tune.main(given) == 0
    page = (out / "page.md").read_text()
    assert "| clip-higher | naive_grpo | 1 |" in page
    trained = re.search(r"```\n(python .*)\n```", page)
    assert trained is not None
    assert shlex.split(trained[1])[:3] == ["python", "-m", "dapo_lit.train"]
    assert len(tune.rows(out / "cells.jsonl")) == 2
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # nothing is run again
    assert tune.main(given) == 0
    assert (out / "page.md").read_text() == page
    result = json.loads((out / "result.json").read_text())
    assert (result["rule"], result["start"], result["runs"], result["check"]) == ("decide", "naive_grpo", 2, None)


@pytest.mark.parametrize(
    "budget", [("--runs", "-3"), ("--hours", "0"), ("--runs", "nan"), ("--runs", "3", "--bases", "0")]
)
def test_a_budget_in_which_nothing_can_be_tried_is_refused(tmp_path, budget, capsys):
    with pytest.raises(SystemExit) as ended:
        tune.main([str(tmp_path / "out"), *budget])
    assert ended.value.code == 2
    assert budget[-2] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
