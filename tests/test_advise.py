"""`dapo_lit.advise` reads a run, and the command that it prints runs."""

import shlex
from pathlib import Path

import pytest
from command_line import SMALL, run_cli

from ablations.compare.advice import advice
from dapo_lit.objective.covariance import LOSSES
from dapo_lit.objective.needs import needs_of

TRL = Path(__file__).with_name("ablations") / "trl_logs"


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("advise")
    done = run_cli(*SMALL, "replay.record=[2]", "budget.steps=3", "algorithm.optimizer.lr=1e-2", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def advise(folder, *arguments):
    return run_cli(*arguments, cwd=folder, module="dapo_lit.advise")


def test_every_technique_has_an_answer_and_a_fork_that_runs(folder):
    done = advise(folder, "runs/four_sums/dapo/seed_0")
    assert done.returncode == 0, done.stderr
    commands = [line.strip() for line in done.stdout.splitlines() if "+study=fork" in line]
    for label in ("overlong filtering", "clip-higher", "soft overlong punishment", "token-level loss"):
        assert f"\n{label} (" in done.stdout
    assert all("'\"'" not in line for line in commands)  # quotes that a reader can paste, and edit
    _, _, module, *arguments = shlex.split(commands[-1])
    short = ("fork.horizon=1", "study.until=null", "study.seeds=[0]", "study.workers=1", "logger.progress=none")
    assert run_cli(*arguments, *short, cwd=folder, module=module).returncode == 0


def test_the_first_steps_are_enough_and_a_folder_without_a_run_is_refused(folder):
    assert "steps 1 to 1," in advise(folder, "runs/four_sums/dapo/seed_0", "steps=1").stdout
    done = advise(folder, "runs")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_log_of_another_trainer_is_measured_and_its_switches_are_unknown(tmp_path):
    done = advise(tmp_path, "--from", "trl", str(TRL / "clip_0.2" / "seed_0"))
    assert done.returncode == 0, done.stderr
    assert "\noverlong filtering: can act\n" in done.stdout
    assert "\ntoken-level loss: unknown\n" in done.stdout
    assert "+study=fork" not in done.stdout
    assert advise(tmp_path, "--from", "trl", str(TRL)).returncode == 2  # six logs


def test_clip_higher_cannot_act_in_a_loss_without_an_upper_bound():
    clipped = [{"step": 1, "clip/high_frac_last_epoch": 0.5, "clip/symmetric_high_frac_last_epoch": 0.5}]
    for loss, function in LOSSES.items():
        answer = advice(
            "clip_higher",
            clipped,
            {"loss": loss, "techniques.clip_higher": True, "loss_arguments": needs_of(function).reads},
            (),
        )
        assert answer.acts is ("clip_high" in needs_of(function).reads), loss
        assert answer.acts or answer.amount.startswith(f"loss={loss} ")


def test_clip_higher_cannot_act_with_one_update_a_step():
    seen = [{"step": 1, "clip/symmetric_high_frac_last_epoch": 0.02}]
    settings = {"num_prompts": 8, "minibatch_prompts": 8, "epochs": 1, "old_logprobs": "recompute", "clip.low": 0.2,
                "clip.high": 0.28, "techniques.clip_higher": True}  # fmt: skip
    answer = advice("clip_higher", seen, settings, ())
    assert answer.acts is False
    assert "minibatch_prompts" in answer.amount
    assert advice("clip_higher", seen, settings | {"epochs": 3}, ()).acts
