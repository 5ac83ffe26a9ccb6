"""A recorded step once more: as it was under the recorded switches, and to the token what others change."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from damages import resealed
from plain_losses import losses_of

from ablations.errors import DamagedError
from ablations.techniques import REGISTER
from dapo_lit.build.components import RunComponents
from dapo_lit.cli.run_summary import what_next
from dapo_lit.config import Config, ConfigError
from dapo_lit.objective.losses import clipped_policy_loss
from dapo_lit_tools.commands.replay import arms_of, changed, main, parse_arguments
from dapo_lit_tools.replays.recorded_step import Recording, Replayed, open_recording, recorded_steps, replay
from dapo_lit_tools.replays.tables import summary_row, token_table

Compose = Callable[..., Config]
MEASURED = ("loss/", "optim/", "clip/", "policy/", "mismatch/")
OFF = "algorithm.techniques."


@pytest.fixture(scope="module")
def recording(recorded_run: Path) -> Recording:
    return open_recording(recorded_run, 3)


@pytest.fixture(scope="module")
def as_recorded(recording: Recording) -> Replayed:
    return replay(recording, recording.config)


def toggled(recording: Recording, **switches: bool) -> Replayed:
    return replay(recording, changed(recording.config, {OFF + name: on for name, on in switches.items()}))


def tokens_of(arm: Replayed) -> pd.DataFrame:
    return token_table(arm, lambda ids: str(ids))


def row(run: Path, step: int) -> dict:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(r for r in rows if r["step"] == step)


@pytest.mark.parametrize("step", [1, 3])
def test_the_recorded_switches_give_the_recorded_metrics_bit_for_bit(recorded_run, step):
    again = replay(found := open_recording(recorded_run, step), found.config)
    before = {key: value for key, value in row(recorded_run, step).items() if key.startswith(MEASURED)}
    assert {key: again.metrics[key] for key in before} == before
    assert before["clip/high_frac"] + before["clip/low_frac"] > 0
    written = pd.read_parquet(recorded_run / "rollouts" / f"step_{step:06d}.parquet")
    kept = written[written["kept"]]
    advantages = [c.advantage for group in again.accepted for c in group.completions]
    assert advantages == kept.sort_values(["group_index", "sample_index"])["advantage"].tolist()
    assert written["examined"].sum() == sum(len(g.completions) for g in again.generated)


def test_the_token_table_holds_the_loss_of_every_update_and_the_clipped_tokens(recorded_run, as_recorded):
    table = tokens_of(as_recorded)
    assert as_recorded.batch is not None
    assert len(table) == 2 * int(as_recorded.batch.response_lengths.sum())
    clip = as_recorded.config.algorithm.clip
    for update, rows in table.groupby("update"):
        ratio, old, advantage, weight = (
            torch.tensor(rows[name].to_numpy()) for name in ("logprob", "old_logprob", "advantage", "weight")
        )
        assert float(weight.sum()) == pytest.approx(1, abs=1e-6)
        loss = losses_of(clipped_policy_loss, ratio, old, advantage, clip_low=clip.low, clip_high=clip.high,
                         clip_dual=clip.dual)  # fmt: skip
        assert float((loss * weight).sum()) == pytest.approx(as_recorded.log.losses[int(update) - 1], abs=1e-6)
    assert table[table["update"] == 1]["ratio"].to_numpy() == pytest.approx(1, abs=1e-5)
    assert table[table["update"] > 1]["ratio"].sub(1).abs().max() > 0.2
    logged, first = row(recorded_run, 3), table[table["epoch"] == 1]
    assert (first["clipped"] == "high").mean() == pytest.approx(logged["clip/high_frac"], abs=1e-12)
    assert (first["clipped"] == "low").mean() == pytest.approx(logged["clip/low_frac"], abs=1e-12)
    up = table[table["clipped"] == "high"]
    assert (up["advantage"] > 0).all()
    assert (up["ratio"] > 1 + clip.high).all()
    keys = ["update", "problem_id", "attempt", "sample_index"]
    assert all(one["position"].tolist() == list(range(len(one))) for _, one in table.groupby(keys))


def test_without_clip_higher_the_first_gradient_is_the_same_and_later_ones_are_not(recording, as_recorded):
    lower = toggled(recording, clip_higher=False)
    table = tokens_of(lower)
    summary = summary_row(lower, as_recorded, table)
    assert summary["cosine_first"] == pytest.approx(1, abs=1e-9)
    assert summary["cosine_step"] < 1 - 1e-6
    assert summary["advantage_change_max"] == 0
    assert summary["rewards_changed"] == summary["groups_in"] == summary["groups_out"] == 0
    assert table[table["clipped"] == "high"]["ratio"].between(1.2, 1.28).any()


def test_the_command_writes_a_table_of_tokens_an_arm_and_a_summary(recorded_run, recording, capsys):
    changes = ["algorithm.clip.high=0.5", "algorithm.techniques.overlong_filtering=true"]
    assert main([str(recorded_run), "step=3", *changes]) == 0
    out = recorded_run / "replay" / "step_000003"
    name = "dapo+overlong_filtering@clip.high=0.5"
    summary = pd.read_csv(out / "summary.csv", index_col="arm")
    assert summary.index.tolist() == ["dapo", name]
    texts = RunComponents(recording.config).tokenizer
    tokens = pd.read_parquet(out / f"{name}.parquet")
    assert tokens["text"].tolist() == [texts.decode([i]) for i in tokens["token_id"]]
    assert summary.loc["dapo", "loss"] == row(recorded_run, 3)["loss/policy"]
    assert "cosine to recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["step=2"], "1, 3"),
        ([], "1, 3"),
        (["step=3", "algorithm.techniques.clip_higher=true"], "dapo"),
        (["step=3", "algorithm.samples_per_prompt=2"], "algorithm.samples_per_prompt"),
        (["step=3", "algorithm.clip.high=much"], "algorithm.clip.high: "),
        (["step=3", "--html", "algorithm.clip.high=0.5"], "algorithm.clip.high"),
        (["step=3", "--html", "trainer.thread=2"], "trainer.threads"),
    ],
)
def test_what_cannot_be_replayed_is_refused(recorded_run, capsys, arguments, named):
    assert main([str(recorded_run), *arguments]) == 2
    assert named in capsys.readouterr().err


def test_without_changes_every_technique_is_toggled_once(recording):
    assert len(arms_of(recording, {})) == 1 + len(REGISTER)


def test_a_run_without_a_recorded_step_and_a_damaged_recording_are_told(tmp_path, recorded_run):
    with pytest.raises(DamagedError, match=r"no config\.yaml"):
        open_recording(tmp_path, 1)
    (tmp_path / "config.yaml").write_text((recorded_run / "config.yaml").read_text())
    with pytest.raises(ConfigError, match=r"replay\.record=\[10\]"):
        open_recording(tmp_path, 1)
    for name in ("replay/step_000001.ckpt", "rollouts/step_000001.parquet"):
        (tmp_path / name).parent.mkdir()
        content = (recorded_run / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2] if name.endswith("ckpt") else content)
    shutil.copy2(recorded_run / "manifest.json", tmp_path)
    assert recorded_steps(tmp_path) == [1]
    with pytest.raises(DamagedError, match="is damaged"):
        open_recording(tmp_path, 1)


ALTERED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "attempts of text": (lambda t: t.assign(attempt="x"), "'attempt' must be a whole number"),
    "verdicts of text": (lambda t: t.assign(correct="yes"), "'correct' must be true, false or nothing"),
    "rewards of text": (lambda t: t.assign(reward="1"), "'reward' must be a number"),
    "responses that are no ids": (lambda t: t.assign(response_ids="7"), "'response_ids' must be a list of token ids"),
    "log-probs that are none": (lambda t: t.assign(rollout_logprobs=1.0), "must be a list of log-probs"),
    "a sample twice": (lambda t: pd.concat([t, t]), "has two rows of submitted_step"),
    "a column less": (lambda t: t.drop(columns="examined"), "has no column examined"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_recorded_rollouts_of_other_types_are_refused_by_file_and_column(tmp_path, recorded_run, name):
    run = Path(shutil.copytree(recorded_run, tmp_path / "run"))
    change, reason = ALTERED[name]
    file = run / "rollouts" / "step_000003.parquet"
    change(pd.read_parquet(file)).to_parquet(file)
    resealed(run)
    with pytest.raises(DamagedError, match=f"step_000003.parquet: .*{reason}") as refused:
        open_recording(run, 3)
    assert "\n" not in str(refused.value)


EVIL = """
open({ran!r}, "w")
def loss(logprobs, old, advantages): return -(logprobs - old).exp() * advantages
def reward(problems, completions): return [1.0] * len(completions)
"""


def foreign(run: Path, place: Path, **named: dict) -> tuple[Path, str]:
    """A copy of a run that brings code, named in its config.yaml where `named` says MODULE; and the code's module."""
    copy = place / f"run_{place.name}"  # a name of its own, because modules stay loaded
    shutil.copytree(run, copy)
    (copy / "evil.py").write_text(EVIL.format(ran=str(place / "ran")))
    tree = yaml.safe_load((copy / "config.yaml").read_text())
    for group, values in named.items():
        tree[group] |= values
    text = yaml.safe_dump(tree).replace("MODULE", f"{copy.name}.evil")
    (copy / "config.yaml").write_text(text)
    resealed(copy)  # as whoever alters a run can
    return copy, f"{copy.name}.evil"


@pytest.mark.parametrize(
    "named",
    [
        {"algorithm": {"loss": "MODULE.loss"}},
        {"reward": {"weights": {"correctness": 1.0, "MODULE.reward": 0.0}}},
    ],
)
def test_code_that_a_run_folder_names_runs_with_the_users_word_only(recorded_run, named, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    run, module = foreign(recorded_run, tmp_path, **named)
    arguments = [str(run), "step=1", "algorithm.clip.high=0.5"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"{module}." in error
    assert "trust=true" in error
    assert not (tmp_path / "ran").exists()
    assert main([*arguments, "trust=true"]) == 0
    assert (tmp_path / "ran").exists() == ("algorithm" in named)  # recorded verdicts need no reward function


def test_code_that_the_command_line_names_needs_no_further_word(recorded_run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    run, module = foreign(recorded_run, tmp_path)
    assert main([str(run), "step=1", f"algorithm.loss={module}.loss"]) == 0
    assert (tmp_path / "ran").exists()


def test_a_run_ends_with_a_command_for_the_page_of_the_state_that_it_kept(recorded_run):
    """It can be copied, and it is the only one: a fork predicts no complete run (docs/calibration.md)."""
    _, play = what_next(recorded_run).splitlines()
    name, python, *command = shlex.split(play)
    assert (name, command[:2]) == ("play", ["-m", "dapo_lit.replay"])
    assert shutil.which(python)
    options = parse_arguments(command[2:])
    assert (options.run, options.step, options.html) == (recorded_run, 1, True)
