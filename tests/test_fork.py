"""A run goes on from states that it kept: as it was, and under other switches with the same problems and noise."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import SMALL, run_cli, run_ranks

from ablations.designs import Arm
from ablations.files.layout import before_step
from ablations.files.metrics_file import read_metrics
from ablations.files.record import read_config
from dapo_lit.config.identity import differences, identity

RUN = Path("runs/four_sums/dapo/seed_0")
FORKS = Path("runs/fork/four_sums_dapo_seed_0")
MACHINE = ("time/", "perf/", "memory/", "eval/", "wall_s")
FORK = ("-m", "+study=fork", f"fork.run={RUN}", "fork.horizon=2", "study.workers=1", "logger.progress=none")


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory) -> Path:
    """A run that kept two states, with a learning rate that falls to its end, and a fork of both in two streams."""
    folder = tmp_path_factory.mktemp("fork")
    kept = ("replay.record=[2,4]", "algorithm.optimizer.schedule=linear", "algorithm.optimizer.lr=1e-2")
    assert run_cli(*SMALL, *kept, cwd=folder).returncode == 0
    done = run_cli(*FORK, "study.arms=[dapo-clip_higher]", "study.seeds=[0,1]", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert str(FORKS / "report.html") in done.stdout
    shutil.copytree(folder / RUN, folder / "hostile")  # its config names code, and the user does not
    (folder / "hostile" / "manifest.json").unlink()
    config = folder / "hostile" / "config.yaml"
    config.write_text(config.read_text().replace("function: null", "function: os.system"))
    return folder


def rows(run: Path, first: int) -> list[dict]:
    """The rows of two steps without what depends on the machine."""
    table = read_metrics(run).table.loc[first : first + 1].dropna(axis=1)
    return table[[key for key in table if not key.startswith(MACHINE)]].to_dict("records")


def cell(folder: Path, step: int, arm: str = "dapo", stream: int = 0) -> Path:
    return folder / FORKS / f"step_{step:06d}" / arm / f"seed_{stream}"


@pytest.mark.parametrize("step", [2, 4])
def test_under_its_own_switches_and_noise_a_run_goes_on_bit_for_bit(folder, step):
    assert len(rows(folder / RUN, step)[0]) > 50
    assert rows(cell(folder, step), step) == rows(folder / RUN, step)
    assert rows(cell(folder, step, stream=1), step) != rows(folder / RUN, step)


OTHERS = {
    "a value network and adapters": (
        "ppo", ("algorithm=ppo", "algorithm.critic.warmup_steps=1", "policy.lora={rank: 2, alpha: 32}"),
    ),
    "two ranks": (
        "dapo", ("trainer=fsdp", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.sharding.dtype=null"),
    ),
}  # fmt: skip
"""Runs whose state holds more, or lies on several ranks, with the name of each one's switches."""


@pytest.mark.parametrize("kind", OTHERS)
def test_a_run_with_more_in_its_state_goes_on_bit_for_bit_as_well(cache, tmp_path, kind):
    name, options = OTHERS[kind]
    ranks, size = 2 if kind == "two ranks" else 1, ("budget.steps=3", "evaluation.every=0", "preflight=false")
    run_ranks(ranks, *SMALL, *options, *size, "replay.record=[2]", "algorithm.optimizer.lr=1e-2", cwd=tmp_path)
    run = tmp_path / "runs" / "four_sums" / name / "seed_0"
    arm = Arm(frozenset(t for t, on in read_config(run)["algorithm"]["techniques"].items() if on)).name
    fork = ("+study=fork", f"fork.run={run}", "fork.steps=[2]", "fork.horizon=2", f"study.arm={arm}", "seed=0")
    run_ranks(ranks, *fork, "logger.progress=none", cwd=tmp_path)
    (forked,) = (tmp_path / "runs" / "fork").glob("*/step_000002/*/seed_0")
    assert forked.parent.name == arm
    assert len(rows(forked, 2)) == 2
    assert rows(forked, 2) == rows(run, 2)


def test_an_arm_differs_from_the_run_in_its_switch_only_and_starts_from_the_same_samples(folder):
    own, arm = (cell(folder, 2, name) for name in ("dapo", "dapo-clip_higher"))
    trees = [identity(read_config(path)) for path in (own, arm)]
    assert differences(*trees) == {"algorithm.techniques.clip_higher": [True, False]}
    of_run = identity(read_config(folder / RUN))
    assert all(key.startswith("fork") for key in differences(of_run, trees[0]))
    before, after = zip(rows(own, 2), rows(arm, 2), strict=True)
    sampled = [key for key in before[0] if key.startswith(("rollout/", "reward/"))]
    assert [before[0][key] for key in sampled] == [before[1][key] for key in sampled]
    assert after[0]["loss/policy"] != after[1]["loss/policy"]


def test_an_arm_with_another_reward_scores_what_the_state_holds_by_it(cache, tmp_path):
    """Verdicts of two rules in one group would be advantages between answers that are equally wrong."""
    carried = ("algorithm.dynamic_sampling.carry_over=all", "rollout.max_batch_size=24", "logger.rollouts_every=1")
    size = ("budget.steps=3", "evaluation.every=0", "preflight=false", "replay.record=[3]")
    assert run_cli(*SMALL, *carried, *size, cwd=tmp_path).returncode == 0
    groups = torch.load(before_step(tmp_path / RUN, 3), weights_only=False)["RolloutDataModule"]["collector"]["carried"]
    assert any(c.reward == -1 for group in groups for c in group.scored.values())
    fork = (
        "+study=fork",
        f"fork.run={RUN}",
        "fork.steps=[3]",
        "fork.horizon=1",
        "logger.progress=none",
        "logger.rollouts_every=1",
    )
    arm = "dapo@reward.wrong_value=0"
    done = run_cli(*fork, f"study.arms=[{arm!r}]", f"study.arm={arm!r}", "seed=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "runs" / "fork").rglob("rollouts/step_000003.parquet")
    found = pd.read_parquet(file)
    assert (found["submitted_step"] < 3).any()
    assert set(found.loc[~found["correct"], "reward"]) == {0.0}
    assert set(found.loc[found["correct"], "reward"]) == {1.0}


def test_the_page_has_each_state_by_itself_and_what_it_is(folder):
    page = (folder / FORKS / "report.html").read_text()
    assert page.count("<h2") == page.count("the run was repeated exactly") == 2
    assert "does not predict a complete run" in page
    before = read_metrics(folder / RUN).table["tokens_generated"][1]
    last = [
        [read_metrics(cell(folder, 2, arm, stream)).table.loc[3] for stream in (0, 1)]
        for arm in ("dapo", "dapo-clip_higher")
    ]
    unit = sum(row["tokens_generated"] - before for row in last[1]) / 2  # the arm without the technique
    columns = {
        "rollout/accuracy": (100, 1), "rollout/entropy": (1, 3), "rollout/length_mean": (1, 2),
        "rollout/truncated_frac": (100, 1), "rollout/groups_mixed_frac": (100, 1), "tokens_generated": (100 / unit, 1),
    }  # fmt: skip
    row = ["clip-higher", "2"]
    for key, (scale, digits) in columns.items():
        one, other = (scale * (own[key] - arm[key]) for own, arm in zip(*last, strict=True))
        # the 97.5 % quantile of t with one degree of freedom; sd / sqrt(2) of two values is half their distance
        row.append(f"{(one + other) / 2:+.{digits}f} ± {12.7062 * abs(one - other) / 2:.{digits}f}")
    section = page[page.index("<h2") : page.rindex("<h2")]
    # every number of the state's table, and of the sentence below it
    assert [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", section, re.DOTALL)] == row
    cells = [json.loads(file.read_text()) for file in (folder / FORKS / "step_000002").glob("*/seed_*/run.json")]
    spent = [
        read_metrics(cell(folder, 2, one["arm"], one["seed"])).table["tokens_generated"][3] - before for one in cells
    ]
    total = read_metrics(folder / RUN).table["tokens_generated"].iloc[-1]
    words = f"{len(cells)} continuations of 2 steps generated {sum(spent):,.0f} tokens, {sum(spent) / total:.2g} times"
    assert words in page
    record = json.loads((cell(folder, 2) / "run.json").read_text())
    assert record["origin"]["step"] == 2
    assert record["origin"]["state"] != json.loads((cell(folder, 4) / "run.json").read_text())["origin"]["state"]


def test_the_same_command_again_runs_nothing_and_finds_the_same(folder):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("DONE.json")}
    done = run_cli(*FORK, "study.arms=[dapo-clip_higher]", "study.seeds=[0,1]", cwd=folder)
    assert done.returncode == 0
    assert done.stdout.count("nothing to do") == 8
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("DONE.json")} == before


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("fork.run=runs/four_sums/dapo/seed_7",), "config.yaml"),
        (("fork.steps=[2,3]",), "replay.record"),
        (("fork.steps=[4]", "fork.horizon=4"), "fork.horizon"),
        (("fork.steps=[2]", "study.pilot=true"), "study.pilot"),
        (("algorithm.optimizer.lr=1e-4",), "algorithm.optimizer.lr"),
        (("+regime=joint",), "regime"),
        (("trainer.strategy=fsdp",), "trainer.strategy"),
        (('study.arms=["dapo@optimizer.weight_decay=0.5"]',), "algorithm.optimizer.weight_decay"),
        (("study.arms=[dapo-clip_hgher]",), "study.arms"),
        (("fork.run=hostile",), "reward.function"),
    ],
)
def test_what_a_fork_cannot_continue_is_refused_by_its_key(folder, arguments, key):
    before = sorted(folder.rglob("*"))
    done = run_cli(*FORK, *arguments, "study_name=other", cwd=folder)
    assert done.returncode == 2
    assert key in done.stderr
    assert sorted(folder.rglob("*")) == before
