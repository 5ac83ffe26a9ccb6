"""Every algorithm trains, and does with a batch what its paper says."""

import pytest
import torch
from small_runs import RUN, Run, collected_step, rows, same_run, scored, stop_in

from dapo_lit.config import Config
from dapo_lit.runs.run_folder import run_path
from dapo_lit.train import train


def run_of(config: Config) -> tuple[Run, list[dict]]:
    """Trains; the run and its rows after step 0."""
    run = Run(config)
    run.fit()
    return run, rows(run.folder.path)[1:]


def test_the_reference_is_the_policy_that_training_began_with_and_in_no_checkpoint(compose):
    options = ("algorithm=grpo", "algorithm.optimizer.lr=0.01")
    whole, written = run_of(compose(*options, "study_name=whole", "budget.steps=4"))
    run_of(compose(*options, "study_name=halves", "budget.steps=2"))
    config = compose(*options, "study_name=halves", "budget.steps=4", "resume=true")
    train(config, [])
    divergence = [row["policy/kl_ref"] for row in written]
    assert divergence == [row["policy/kl_ref"] for row in rows(run_path(config, "grpo"))[1:]]  # also after the resume
    measured = [value for value in divergence if value is not None]
    assert measured[0] < measured[-1] / 10
    saved = torch.load(whole.folder.checkpoints[-1], weights_only=False)["state_dict"]
    assert {name.split(".")[0] for name in saved} == {"policy"}


def test_a_resumed_run_goes_on_with_the_entropy_bonus_that_its_controller_had_found(compose, tmp_path, monkeypatch):
    """The first steps are above the target: at the stop the coefficient is 0.125 and the bonus 0."""
    options = "++algorithm.entropy.options={target: 2.25, delta: 0.25, most: 0.5}"
    control = ("algorithm.entropy={bonus: 0.375, control: target}", options)
    settings = (*control, "algorithm.optimizer.lr=0.01", "budget.steps=4")
    train(compose(*settings, f"runs_dir={tmp_path / 'whole'}"), [])
    with monkeypatch.context() as patch:
        stop_in(2, patch)
        with pytest.raises(SystemExit):
            train(compose(*settings, f"runs_dir={tmp_path / 'halves'}"), [])
    train(compose(*settings, f"runs_dir={tmp_path / 'halves'}", "resume=true"), [])
    assert same_run(tmp_path / "whole" / RUN, tmp_path / "halves" / RUN)
    found = rows(tmp_path / "whole" / RUN)[1:]
    assert [row["policy/entropy"] <= 2.25 for row in found] == [False, False, True, True]
    assert [row["policy/entropy_bonus"] for row in found] == [0.375, 0.0, 0.0, 0.25]


def test_log_probs_of_the_reference_are_at_the_sampling_temperature(compose, monkeypatch):
    module, step = collected_step(compose("algorithm=grpo", "budget.steps=1", "rollout.temperature=0.7"), monkeypatch)
    ((micro, _),) = module.policy_forward.micro_batches(step.tokens, [0, 3])
    reference = scored(module, step.tokens)[0].ref_logprobs[micro.tokens]
    expected = []
    for completion in sorted(set(micro.completions.tolist()), key=micro.completions.tolist().index):
        ids = step.tokens.sequences[completion]
        log_q = (module.reference.model(ids[None]).logits[0].double() / 0.7).log_softmax(-1)
        begin = int(step.tokens.prompt_lengths[completion]) - 1
        expected += log_q[begin:-1].gather(1, ids[begin + 1 :, None]).flatten().tolist()
    assert reference.tolist() == pytest.approx(expected, abs=1e-4)


def test_a_critic_warms_up_without_the_policy_and_comes_to_predict_the_return(compose):
    config = compose("algorithm=ppo", "algorithm.critic.warmup_steps=3", "algorithm.critic.lr=0.002", "budget.steps=8")
    _, written = run_of(config)
    assert [row["loss/policy"] is None for row in written] == [True] * 3 + [False] * 5
    assert [row["policy/entropy"] is None for row in written] == [True] * 3 + [False] * 5
    # The untrained policy has nearly nothing right: its return is near -1, and a critic that began at 0 finds it.
    assert written[0]["critic/value_mean"] == 0
    assert written[4]["critic/value_mean"] < -0.2
    assert written[4]["critic/loss"] < written[0]["critic/loss"]
