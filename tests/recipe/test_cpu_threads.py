"""trainer.cpu.auto: what is measured, what is chosen, and that a resumed run keeps it."""

import os

import pytest
import torch
import yaml

from dapo_lit.commands import train
from dapo_lit.config import ConfigError
from dapo_lit.recipe import cpu_threads as choice
from dapo_lit.recipe.cpu_threads import fastest, measure, with_threads
from dapo_lit.recipe.parts import Parts


@pytest.fixture(autouse=True)
def one_quick_step(monkeypatch):
    monkeypatch.setattr(choice, "ENOUGH_S", 0.0)
    monkeypatch.setattr(choice, "REPEATS", 1)


def test_of_two_numbers_within_a_twentieth_the_smaller_is_taken():
    assert fastest({1: 1.0, 2: 0.96, 4: 0.97}) == 1
    assert fastest({1: 1.0, 2: 0.5, 4: 0.49}) == 2
    assert fastest({1: 1.0, 2: 1.2}) == 1


def test_measuring_leaves_the_policy_and_torch_as_they_were(compose):
    policy = Parts(compose()).policy
    before, threads = [p.clone() for p in policy.parameters()], torch.get_num_threads()
    found = measure(policy, cores=2)
    assert sorted(found) == [1, 2]
    assert min(found.values()) > 0
    assert torch.get_num_threads() == threads
    for parameter, old in zip(policy.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None


def test_a_new_run_takes_what_is_measured_and_a_resumed_one_what_it_took_before(compose, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "measure", lambda policy: {1: 3.0, 2: 1.0})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    config = compose("trainer.cpu.auto=true", "resume=auto")
    chosen = train.with_measured_threads(config, tmp_path)
    assert chosen.trainer.threads == 2
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(with_threads(chosen, 5).model_dump(mode="json")))
    assert train.with_measured_threads(config, tmp_path).trainer.threads == 5
    anew = config.model_copy(update={"resume": False})
    assert train.with_measured_threads(anew, tmp_path).trainer.threads == 2


def test_a_run_writes_the_measured_number_into_its_config(compose, monkeypatch):
    threads = torch.get_num_threads()
    config = compose("trainer.cpu.auto=true", "budget.steps=1")
    try:
        train.train(config, [])
    finally:
        torch.set_num_threads(threads)
    (written,) = (train.run_path(config, train.arm_of(config))).glob("config.yaml")
    trainer = yaml.safe_load(written.read_text())["trainer"]
    assert trainer["cpu"] == {"auto": True}
    assert 1 <= trainer["threads"] <= (os.cpu_count() or 1)


def test_several_processes_are_not_measured(compose):
    with pytest.raises(ConfigError, match=r"cpu\.auto measures one process"):
        compose("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.cpu.auto=true")
