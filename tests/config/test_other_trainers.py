"""Every setting that another trainer's user may type is answered by the key here, or by why there is none."""

import dataclasses
from inspect import signature

import pytest
from lightning import Trainer
from transformers import TrainingArguments

from dapo_lit.config.identity import kinds
from dapo_lit.config.parsing import NONE, key_for, near_key, unknown_key, words

SETTINGS = {
    "Lightning's Trainer": [f"trainer.{name}" for name in signature(Trainer).parameters],
    "transformers' TrainingArguments": [field.name for field in dataclasses.fields(TrainingArguments)],
}


@pytest.mark.parametrize("trainer", SETTINGS)
def test_every_setting_of_a_trainer_is_answered(trainer):
    leaves = {key.rpartition(".")[2] for key in kinds()}
    settings = [name for name in SETTINGS[trainer] if name.rpartition(".")[2] not in leaves]
    assert len(settings) > 30
    assert [name for name in settings if key_for(name, kinds()) is None] == []


def test_every_counterpart_is_a_key_here_and_no_word_is_another_key_here():
    meant = {word: key for word, key in words().items() if not key.startswith(NONE)}
    assert [word for word, key in meant.items() if key not in kinds()] == []
    # A word that means its namesake is there for `convert`; nobody is answered with it.
    assert [word for word, key in words().items() if word in kinds() and word != key] == []


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("trainer.precision", "trainer.sharding.dtype"),
        ("trainer.max_epochs", "budget.steps"),
        ("deepspeed", "no counterpart"),
        ("rollouts_per_example", "algorithm.samples_per_prompt"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", "no counterpart"),
        ("algorithm.clip.hgh", "algorithm.clip.high"),
        ("algorithm.clip_higer", "algorithm.techniques.clip_higher"),
    ],
)
def test_a_key_is_answered_by_what_was_meant(typed, answer):
    assert answer in unknown_key(typed.split("."))


@pytest.mark.parametrize("word", ["precison", "max_lenth", "deepsped", "rollouts_per_exampel", "quantile", "n", "fuse"])
def test_no_key_is_suggested_whose_last_word_is_another(word):
    leaves = [key.rpartition(".")[2] for key in kinds()]
    near = near_key(word, leaves)
    assert near is None or near.rpartition("_")[2][:3] == word.rpartition("_")[2][:3], near
