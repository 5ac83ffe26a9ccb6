"""Training steps against a second, independent implementation of DAPO's update (reference_update.py), in float64."""

import copy
from types import SimpleNamespace

import pytest
from reference_update import AdamW, Response, Settings, train_step

from dapo_lit.lit.module import DAPOModule
from dapo_lit.step.packing import counter_seed
from dapo_lit.train import train

STEPS = 3
LIMIT, CACHE = 8, 4
BASE = (
    f"budget.steps={STEPS}", f"task.max_response_tokens={LIMIT}", f"algorithm.overlong.cache_tokens={CACHE}",
    "algorithm.num_prompts=6", "algorithm.minibatch_prompts=3", "evaluation.every=0", "evaluation.samples=1",
    "algorithm.optimizer.warmup_steps=2", "trainer.micro_batch_tokens=64", "algorithm.dynamic_sampling.max_rounds=40",
)  # fmt: skip
TECHNIQUES = {"clip_higher": True, "soft_overlong_punishment": True, "token_level_loss": True}


@pytest.fixture
def recorded(monkeypatch):
    """What a run was trained on, and what it came to."""
    run = SimpleNamespace(model=None, steps=[], metrics=[], policy=None)
    original = DAPOModule.training_step

    def recording(module, batch, batch_idx):
        if run.model is None:
            run.model = copy.deepcopy(module.policy).double().eval()
            run.model.set_attn_implementation("eager")
            run.before = [p.detach().clone() for p in run.model.parameters()]
        groups, size = batch.collected.accepted, module.config.algorithm.minibatch_prompts
        run.steps.append(
            (
                [
                    Response(
                        [int(i) for i in g.prompt_ids],
                        [int(i) for i in c.sample.response_ids],
                        position,
                        c.correct,
                        c.truncated,
                    )
                    for position, g in enumerate(groups)
                    for c in g.completions
                ],
                [
                    list(batch.tokens.minibatches(size, counter_seed(module.config.seed, batch.step, epoch)))
                    for epoch in range(module.config.algorithm.epochs)
                ],
            )
        )
        original(module, batch, batch_idx)
        run.metrics.append(module.step_metrics)
        run.policy = module.policy

    monkeypatch.setattr(DAPOModule, "training_step", recording)
    return run


def off(switch: str) -> str:
    return f"algorithm.techniques.{switch}=false"


CASES: dict[str, tuple[tuple[str, ...], dict]] = {
    "all techniques": ((), {}),
    "without clip-higher": ((off("clip_higher"),), {"clip_high": 0.2}),
    "without dynamic sampling": ((off("dynamic_sampling"),), {}),
    "without the token-level loss": ((off("token_level_loss"),), {"denominator": "sample"}),
    "without the soft punishment": ((off("soft_overlong_punishment"),), {"soft_punishment": False}),
    "with overlong filtering": (("algorithm.techniques.overlong_filtering=true",), {"overlong_filtering": True}),
    "mean over prompts": (("algorithm.token_level_denominator=group",), {"denominator": "group"}),
    "two epochs at a high learning rate": (
        ("algorithm.epochs=2", "algorithm.optimizer.lr=0.01"),
        {"lr": 0.01},
    ),
    "dual clip": (
        ("algorithm.clip.dual=1.02", "algorithm.epochs=2", "algorithm.optimizer.lr=0.01"),
        {"clip_dual": 1.02, "lr": 0.01},
    ),
    "a temperature of 0.7": (("rollout.temperature=0.7",), {"temperature": 0.7}),
    "one update a step": (("algorithm.minibatch_prompts=6",), {}),
    "a small bound of the gradient": (("algorithm.optimizer.grad_clip=0.05",), {"grad_clip": 0.05}),
    "Dr. GRPO": (
        ("algorithm=dr_grpo",),
        {"denominator": "constant", "scale_by_std": False, "clip_high": 0.2, "soft_punishment": False},
    ),
    "GSPO": (
        ("algorithm=gspo", "algorithm.epochs=2"),
        {"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "denominator": "sample", "soft_punishment": False},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_gradient_norms_and_weights_are_those_of_the_reference(recorded, compose, case):
    options, changed = CASES[case]
    names = [o for o in options if o.startswith("algorithm=")]
    config = compose(*names, *BASE, *(o for o in options if o not in names))
    train(config, [])
    optimizer = config.algorithm.optimizer
    settings = Settings(
        **{
            "clip_low": 0.2, "clip_high": 0.28, "clip_dual": None, "denominator": "minibatch", "soft_punishment": True,
            "overlong_filtering": False, "hard_punishment": config.algorithm.overlong.hard_punishment, "limit": LIMIT,
            "cache": CACHE, "temperature": 1.0, "lr": optimizer.lr, "betas": tuple(optimizer.betas),
            "eps": optimizer.eps, "grad_clip": optimizer.grad_clip, **changed,
        }
    )  # fmt: skip
    responses = [r for step, _ in recorded.steps for r in step]
    assert 0.1 < sum(r.truncated for r in responses) / len(responses) < 0.9, "no case without truncated responses"
    assert len({len(r.tokens) for r in responses}) > 3
    reference = AdamW(recorded.model.parameters())
    for number, ((step, epochs), metrics) in enumerate(zip(recorded.steps, recorded.metrics, strict=True), 1):
        rate = settings.lr * min(1.0, number / optimizer.warmup_steps)
        losses, norms = train_step(recorded.model, reference, step, epochs, settings, rate)
        assert metrics["loss/policy"] == pytest.approx(sum(losses) / len(losses), rel=2e-4, abs=2e-6)
        assert metrics["optim/grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=2e-4)
    distance = moved = 0.0
    for start, expected, found in zip(
        recorded.before, recorded.model.parameters(), recorded.policy.parameters(), strict=True
    ):
        moved += float(((expected - start) ** 2).sum())
        distance += float(((expected - found) ** 2).sum())
    assert moved > 0
    assert (distance / moved) ** 0.5 < 3e-3
