"""Training steps against a second, independent implementation of DAPO's update (reference_update.py), in float64."""

import copy
from types import SimpleNamespace

import pytest
from reference_update import AdamW, LowRank, Response, Settings, ValueModel, train_step
from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_lit.lit.module import DAPOModule
from dapo_lit.step.batch import counter_seed
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
    run = SimpleNamespace(model=None, critic=None, steps=[], metrics=[], policy=None)
    original = DAPOModule.training_step

    def recording(module, batch, batch_idx):
        if run.model is None:
            run.model, run.critic = (None if m is None else wide(m) for m in (module.policy, module.critic))
            run.initial = copy.deepcopy(run.model)
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
        run.policy, run.trained_critic = module.policy, module.critic

    monkeypatch.setattr(DAPOModule, "training_step", recording)
    return run


def wide(model: nn.Module) -> nn.Module:
    """A copy in float64 with eager attention and the reference's own adapters."""
    found = copy.deepcopy(model).double().eval()
    for inner in list(found.modules()):
        if isinstance(inner, PreTrainedModel):
            inner.set_attn_implementation("eager")
        for name, layer in list(inner.named_children()):
            if hasattr(layer, "lora_A"):
                a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
                setattr(inner, name, LowRank(layer.base_layer, a, b, SCALE))
    return found


def trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def difference(first: nn.Module, second: nn.Module) -> float:
    """Distance between the trained weights of two models."""
    pairs = zip(trained(first), trained(second), strict=True)
    return sum(float(((a - b).detach() ** 2).sum()) for a, b in pairs) ** 0.5


# Each switch in its other position: tests/test_one_file.py, against another implementation.
CASES: dict[str, tuple[tuple[str, ...], dict]] = {
    "all techniques": ((), {}),
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
    "PPO": (
        (
            "algorithm=ppo", "algorithm.epochs=2", "algorithm.critic.warmup_steps=0", "algorithm.critic.lr=0.01",
            "algorithm.advantage={gamma: 0.97, lam: 0.9}", "algorithm.kl.beta=0.1",
        ),
        {"clip_high": 0.2, "soft_punishment": False},
    ),
    "groups that are all right": (
        (
            "algorithm.techniques.dynamic_sampling=false", "reward.function=reward_functions.often_right",
            "preflight=false",
        ),
        {},
    ),
    "LoRA": (
        ("policy.lora={rank: 4, alpha: 8}", "algorithm.optimizer.lr=0.01"),
        {"lr": 0.01},
    ),
}  # fmt: skip
SCALE = 2.0
"""alpha / rank of the case LoRA."""


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
    if case == "groups that are all right":
        groups = [
            [r.correct for r in step if r.group == position] for step, _ in recorded.steps for position in range(6)
        ]
        assert 0 < sum(map(all, groups)) < len(groups)
    reference, critic = AdamW(trained(recorded.model)), None
    if recorded.critic is not None:
        of_ppo, kl, a = config.algorithm.critic, config.algorithm.kl, config.algorithm.advantage
        first_critic = copy.deepcopy(recorded.critic)
        critic = ValueModel(
            recorded.critic.backbone, recorded.critic.head, recorded.initial, AdamW(trained(recorded.critic)),
            of_ppo.lr, kl.beta, a.gamma, a.lam, of_ppo.clip, of_ppo.loss_weight,
        )  # fmt: skip
    for number, ((step, epochs), metrics) in enumerate(zip(recorded.steps, recorded.metrics, strict=True), 1):
        rate = settings.lr * min(1.0, number / optimizer.warmup_steps)
        losses, norms = train_step(recorded.model, reference, step, epochs, settings, rate, critic)
        assert metrics["loss/policy"] == pytest.approx(sum(losses) / len(losses), rel=2e-4, abs=2e-6)
        assert metrics["optim/grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=2e-4)
    assert (moved := difference(recorded.model, recorded.initial)) > 0
    assert difference(recorded.model, recorded.policy) / moved < 3e-3
    if critic is not None:
        assert (moved := difference(recorded.critic, first_critic)) > 0
        assert difference(recorded.critic, recorded.trained_critic) / moved < 3e-3
