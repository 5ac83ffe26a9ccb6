"""What a trainer hands over is used, and without a trainer runs are read as they are."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ablations import trainer
from ablations.command_text import command
from ablations.errors import DamagedError
from ablations.files.record import check_config
from ablations.read.guard import composed_refusals, other_base
from ablations.read.run import StudyError
from ablations.read.runs import Runs
from ablations.techniques import REGISTER, read_techniques, register, techniques_text
from ablations.trainer import Configs, Remedies, Trainer, hand_over

OF_ARMS = {
    name: {"lr": 1.0, "name": name, "runs_dir": name, "logger": {"wandb": {"project": name}}} for name in ("a", "b")
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Tests that follow have the trainer and the techniques that were there."""
    known, techniques = trainer._trainer, list(REGISTER.values())
    yield
    hand_over(known)
    register(techniques)


def test_without_a_trainer_every_setting_counts_and_what_is_read_is_checked():
    hand_over(Trainer())
    assert command("decide", "a b.csv") == "ablations decide 'a b.csv'"
    (refusal,) = composed_refusals(OF_ARMS, ["lr"])
    assert "differ in name" in refusal
    assert "(a: a, b: b)" in refusal
    check_config({"algorithm": {"techniques": {"clip_higher": True}}, "of_their_own": [1]}, "config.yaml")
    with pytest.raises(DamagedError, match=r"config\.yaml: budget\.steps is 'x'.*integer"):
        check_config({"budget": {"steps": "x"}}, "config.yaml")


def test_a_trainer_says_how_its_configs_are_read_and_how_its_commands_are_typed():
    def refuse(tree, place):
        raise DamagedError(f"{place}: not mine")

    hand_over(Trainer(("mine", "run", "{}"), lambda: Configs(lambda tree: {"lr": tree["lr"]}, check=refuse)))
    assert command("report", "runs") == "mine run report runs"
    assert ["the same config" in one for one in composed_refusals(OF_ARMS, ["lr"])] == [True]
    with pytest.raises(DamagedError, match="not mine"):
        check_config({}, "config.yaml")


def test_what_is_done_about_a_finding_is_said_by_the_trainer_only():
    """Somebody with the logs of another trainer has none of these settings."""
    made = [{"base_weights": weights} for weights in ("a", "b")]
    runs = Runs(())
    hand_over(Trainer())
    assert "base_from" not in other_base(*made)
    with pytest.raises(StudyError, match=r"no run recorded rollouts$"):
        runs.frame("rollouts")
    hand_over(Trainer(remedies=Remedies(unequal_bases="; share=them", no_rollouts="; keep=them")))
    assert other_base(*made).endswith("; share=them")
    with pytest.raises(StudyError, match=r"; keep=them$"):
        runs.frame("rollouts")


def test_techniques_are_the_same_after_they_were_written_and_read_but_for_their_code():
    techniques = list(REGISTER.values())
    read = read_techniques(techniques_text(techniques))
    assert read == [replace(technique, idle=()) for technique in techniques]
    register(read[:2])
    assert [*REGISTER] == [technique.switch for technique in techniques[:2]]
