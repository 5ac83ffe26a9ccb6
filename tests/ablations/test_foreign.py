"""Logs of other trainers. TRL 1.16 wrote trl_logs/ on a CPU: 8 rollout steps of 2 updates, two bounds, three seeds."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from ablations.arguments import LOG_SYSTEMS
from ablations.commands.report import main
from ablations.read import foreign
from ablations.read.foreign import import_runs
from ablations.read.run import StudyError
from ablations.read.runs import load

TRL = Path(__file__).with_name("trl_logs")
ACCURACY = "rewards/accuracy/mean"


def test_a_run_of_trl_has_a_row_for_each_rollout_step(tmp_path):
    metric, notes, _ = import_runs("trl", [TRL], tmp_path, ACCURACY)
    runs = load(tmp_path)
    assert (metric, runs.arms, runs.seeds) == ("reward/accuracy", ("clip_0.2", "clip_0.28"), (0, 1, 2))
    log = json.loads((TRL / "clip_0.28/seed_1/trainer_state.json").read_text())["log_history"]
    sampled = [row for row in log if "completions/mean_length" in row]
    run = runs.of("clip_0.28")[1]
    assert len(sampled) == len(run.metrics) == 8
    assert run.series("gradient_step").to_list() == [row["step"] for row in sampled] == [1, 3, 5, 7, 9, 11, 13, 15]
    for ours, theirs in (
        ("reward/accuracy", ACCURACY),
        ("rollout/entropy", "entropy"),
        ("rollout/length_mean", "completions/mean_length"),
        ("rollout/truncated_frac", "completions/clipped_ratio"),
        ("tokens_generated", "num_tokens"),
    ):
        assert run.series(ours).to_list() == pytest.approx([row[theirs] for row in sampled], rel=1e-6)
    assert run.series("rollout/groups_mixed_frac").iloc[0] == pytest.approx(1 - sampled[0]["frac_reward_zero_std"])
    seconds = [row["step_time"] for row in log if "step_time" in row]
    assert run.series("wall_s").iloc[1] == pytest.approx(sum(seconds[:3]))  # the update between the two counts
    assert any("6 pairs" in note for note in notes)


def test_a_log_of_every_other_step_is_not_counted_and_nothing_is_said_at_equal_budget(tmp_path, capsys):
    for file in TRL.rglob("trainer_state.json"):
        state = json.loads(file.read_text())
        state["log_history"] = state["log_history"][::2]
        (tmp_path / file.relative_to(TRL)).parent.mkdir(parents=True)
        (tmp_path / file.relative_to(TRL)).write_text(json.dumps(state))
    assert main(["--from", "trl", str(tmp_path), "--metric", ACCURACY]) == 0
    (run, *_) = load(tmp_path / "report" / "imported")
    assert run.series(f"reward/{ACCURACY.split('/')[1]}").index.to_list() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert not len(run.series("wall_s"))
    shown = capsys.readouterr().out
    assert "every step" in shown
    assert "needed to its control's level" not in shown


@pytest.mark.parametrize("system", LOG_SYSTEMS)
def test_every_system_has_a_key_map(system):
    keys = yaml.safe_load((Path(foreign.MAPS) / f"{system}.yaml").read_text())
    assert set(keys) == {"rollout", "metrics", "one_minus", "so_far", "sums", "patterns"}


def test_the_share_that_verl_calls_lower_is_that_of_the_dual_clip(tmp_path):
    # In its clipped loss that is A < 0 and a ratio above clip_ratio_c.
    values = {"critic/score/mean": 0.5, "response_length/mean": 10, "actor/pg_clipfrac_lower": 0.25}
    rows = [json.dumps({"step": step, "data": values}) for step in (1, 2)]
    (tmp_path / "x_seed_0.jsonl").write_text("\n".join(rows) + "\n")
    import_runs("verl", [tmp_path / "x_seed_0.jsonl"], tmp_path / "out", None)
    (run, *_) = load(tmp_path / "out")
    assert run.series("clip/dual_frac").to_list() == [0.25, 0.25]
    assert not len(run.series("clip/low_frac"))


def test_its_report_decides_nothing_and_says_what_was_not_compared(tmp_path, capsys):
    assert main(["--from", "trl", str(TRL), "--metric", ACCURACY, "--output", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["study"] == "trl"
    assert "no settings" in (tmp_path / "report.html").read_text()
    shown = capsys.readouterr().out
    assert "exploratory" in shown
    assert "Decided: nothing." in shown


def test_an_offline_run_of_wandb_has_its_metrics_name_and_settings(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name, high in (("a_seed_0", 0.2), ("b_seed_0", 0.28)):
        settings = {"epsilon_high": high, "seed": int(name[-1]), "output_dir": name}
        with wandb.init(mode="offline", dir=tmp_path / "logs", project="p", name=name, config=settings) as run:
            for step in range(1, 40):  # with text, so that a record goes over the end of a block
                row = {"train/completions/mean_length": 2.0 * step, "train/reward": step / 8, "text": "x" * 2000}
                run.log({**row, "train/global_step": step})
    wandb.teardown()  # or commands that this process starts later share its service
    metric, notes, _ = import_runs("trl", [tmp_path / "logs"], tmp_path / "out", None)
    assert metric == "rollout/reward"
    assert any("epsilon_high" in note for note in notes)
    (run,) = load(tmp_path / "out").of("b")
    assert run.series("rollout/reward").to_list() == [step / 8 for step in range(1, 40)]
    with wandb.init(mode="offline", dir=tmp_path / "logs", project="p", name="a_seed_1", config=settings) as run:
        run.log({"train/completions/mean_length": 2.0, "train/reward": 0.5, "train/global_step": 1})
    wandb.teardown()  # two runs of one arm, with different settings
    with pytest.raises(StudyError, match="epsilon_high"):
        import_runs("trl", [tmp_path / "logs"], tmp_path / "out", None)


def test_an_event_file_of_tensorboard_has_its_scalars_and_nothing_else(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm in "ab":
        with SummaryWriter(tmp_path / "logs" / arm / "seed_0") as writer:
            writer.add_text("args", "{}")  # the Trainer's callback writes its arguments
            for step in range(1, 6):
                writer.add_scalar("train/completions/mean_length", 2.0 * step, step, new_style=True)
                writer.add_scalar("train/reward", step / 8, step)
    metric, *_ = import_runs("trl", [tmp_path / "logs"], tmp_path / "out", None)
    assert metric == "rollout/reward"
    (run,) = load(tmp_path / "out").of("b")
    assert run.series("rollout/reward").to_list() == [step / 8 for step in range(1, 6)]
    assert run.series("rollout/length_mean").to_list() == [2.0 * step for step in range(1, 6)]
    assert "args" not in run.metrics


def csv(folder: Path, table: dict[str, list]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).to_csv(folder / "runs.csv", index=False)
    return folder


def test_a_table_names_arm_and_seed_in_its_columns_and_unequal_seeds_are_not_paired(tmp_path):
    numbers = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    table = {"arm": [*"xxxxxxyyyyyy"], "seed": numbers, "step": [1, 2] * 6, "rollout/reward": numbers}
    metric, notes, _ = import_runs("csv", [csv(tmp_path / "logs", table)], tmp_path / "out", None)
    assert metric == "rollout/reward"
    # Means 5 and 2, standard error sqrt(2/3), 4 degrees of freedom: 3 +- 2.776 * 0.8165; 2 of 20 orders are as extreme.
    assert any("+3 [+0.733, +5.27]" in note and "p = 0.1" in note for note in notes)
    assert load(tmp_path / "out").missing().keys() == {("x", s) for s in (4, 5, 6)} | {("y", s) for s in (1, 2, 3)}


def test_arms_with_a_seed_in_common_are_pairs_and_no_test_of_unpaired_runs_is_made(tmp_path):
    numbers = [1, 1, 2, 2, 3, 3]
    table = {"arm": [*"xxxxxxyyyyyy"], "seed": numbers * 2, "step": [1, 2] * 6, "rollout/reward": [*range(12)]}
    _, notes, _ = import_runs("csv", [csv(tmp_path / "logs", table)], tmp_path / "out", None)
    assert not any("not paired" in note for note in notes)


def test_the_largest_seed_of_a_log_is_read_back_and_a_larger_one_is_refused(tmp_path):
    """Packed cells hold it as a whole number that every reader has exactly."""
    table = {"arm": ["x", "y"], "seed": [2**53] * 2, "step": [1, 1], "rollout/reward": [1.0, 2.0]}
    import_runs("csv", [csv(tmp_path / "logs", table)], tmp_path / "out", None)
    assert load(tmp_path / "out").seeds == (2**53,)
    with pytest.raises(StudyError, match="seed is"):
        import_runs("csv", [csv(tmp_path / "more", {**table, "seed": [2**53 + 1] * 2})], tmp_path / "out", None)


@pytest.mark.parametrize(
    ("table", "folder", "named"),
    [
        ({"step": [1], "rollout/reward": [1.0], "rollout/reward__MAX": [1.0]}, "x/seed_0", "__MAX"),
        ({"step": [1], "rollout/reward": [1.0]}, "x", "runs.csv"),
        ({"rollout/reward": [1.0]}, "x/seed_0", "step"),
        ({"step": [1], "score": [1.0], "length": [9.0]}, "x/seed_0", "length, score"),
        ({"arm": ["x", "x"], "seed": [1, 1], "step": [1, 1], "rollout/reward": [1.0, 2.0]}, "x", "step 1"),
    ],
    ids=["a mean over runs", "no arm and seed", "no step", "no known metric", "a step twice"],
)
def test_what_cannot_be_compared_is_refused_by_name(tmp_path, table, folder, named):
    csv(tmp_path / folder, table)
    with pytest.raises(StudyError, match=named):
        import_runs("csv", [tmp_path / folder.split("/")[0]], tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_two_logs_of_one_cell_and_a_torn_line_are_refused(tmp_path):
    for place in ("first/x/seed_0", "second/x/seed_0"):
        csv(tmp_path / place, {"step": [1], "rollout/reward": [1.0]})
    with pytest.raises(StudyError, match="x/seed_0"):
        import_runs("csv", [tmp_path / "first", tmp_path / "second"], tmp_path / "out", None)
    (tmp_path / "x_seed_0.jsonl").write_text('{"step": 1, "data": {"response_length/mean": 2}}\n{"step": 2, "da')
    with pytest.raises(StudyError, match="line 2"):
        import_runs("verl", [tmp_path / "x_seed_0.jsonl"], tmp_path / "out", None)
