"""Cells of the equivalence matrix: one rollout step of a way to compute x an algorithm, on its own processes.

    python -m lit.equivalence_case OUT CELL...   writes OUT/CELL.RANK.pt: per update every parameter's gradient, the
                                                 recorded norm and the step, under plain gradient descent

A cell is named way:algorithm. Samples come from a script, so that they do not depend on the weights' dtype or on ranks.
The way `reference` computes in float64 in one process.
"""

import sys
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lit.ranks_case import compose, fork_ranks, whole
from scripted_engine import ScriptedEngine, ScriptedResponse
from torch import Tensor, nn

from dapo_lit.build.parts import Parts
from dapo_lit.config import Config
from dapo_lit.engines.protocol import SampleKey
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import joined
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.step.batch import RolloutStep

CLIP = 0.5
COMMON = (
    "+experiment=four_sums", "trainer.threads=1", "algorithm.num_prompts=6", "algorithm.minibatch_prompts=2",
    "algorithm.samples_per_prompt=4", "budget.steps=1", "evaluation.every=0", "task.num_heldout=1",
    "evaluation.samples=1", "logger.progress=none", "trainer.micro_batch_tokens=90", "task.max_response_tokens=10",
    "algorithm.overlong.cache_tokens=4", f"algorithm.optimizer.grad_clip={CLIP}", "algorithm.optimizer.warmup_steps=0",
    "algorithm.optimizer.lr=0.5", "algorithm.dynamic_sampling.max_rounds=40",
)  # fmt: skip
"""A clip well below the norm, and steps large enough for ratios to leave the clip within three updates."""
FSDP = ("trainer.strategy=fsdp", "trainer.sharding.dtype=null")
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "reference": (1, ()),
    "single": (1, ()),
    "fsdp 1": (1, FSDP),
    "fsdp 2": (2, FSDP),
    "16-bit copies": (2, ("trainer.strategy=fsdp", "trainer.sharding.dtype=bfloat16", "trainer.fp32_head=true")),
    "shared prefixes": (1, ("trainer.shared_prompt=prefixes",)),
    "checkpointing": (1, ("trainer.activation_checkpointing=full",)),
}
"""Way to compute -> (processes, overrides)."""
CRITIC = ("algorithm.critic.warmup_steps=0", "algorithm.critic.lr=0.5")
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "dapo": (),
    "all five": ("algorithm.techniques.overlong_filtering=true",),
    "naive grpo": ("algorithm=naive_grpo",),
    "reference model": ("algorithm=grpo", "algorithm.kl.beta=0.5"),
    "dr_grpo": ("algorithm=dr_grpo",),
    "rloo": ("algorithm=rloo",),
    "reinforce++": ("algorithm=reinforce_plus_plus",),
    "gspo": ("algorithm=gspo",),
    "gmpo": ("algorithm=gmpo",),
    "cispo": ("algorithm=cispo",),
    "entropy bonus": ("algorithm.techniques.clip_higher=false", "algorithm.entropy.bonus=0.2"),
    "critic": ("algorithm=ppo", *CRITIC),
    "lora": ("policy.lora={rank: 4, alpha: 32}", "algorithm.kl={beta: 0.5, where: loss, estimator: k3}"),
}


class WideNorm(nn.Module):
    """RMSNorm in the dtype of its input; transformers' computes in float32 whatever the input."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def widen(model: nn.Module) -> None:
    """Makes a model compute in float64, norms included."""
    model.double()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, WideNorm(child))


class Watch:
    """Calls a function with the loss of each update, before its step. No module itself, or it would be a submodule."""

    def __init__(self, note: Callable[[float], None]) -> None:
        self.note = note

    def micro_batch(self, *_: Any) -> None: ...

    def update(self, loss: float, gradients: Sequence[Tensor]) -> None:
        self.note(loss)


class Probe(DAPOModule):
    """Plain gradient descent that keeps every gradient and step."""

    def __init__(self, config: Config, wide: bool, *given: Any) -> None:
        super().__init__(config, *given)
        self.wide, self.updates = wide, []
        self.observer = Watch(self.note)

    def configure_model(self) -> None:
        built = self.policy is not None
        super().configure_model()
        if self.wide and not built:
            for model in (self.policy, self.critic, self.reference and self.reference.model):
                if isinstance(model, nn.Module):
                    widen(model)

    def make_updates(self, batch: RolloutStep) -> None:
        if self.wide:
            assert batch.tokens is not None
            batch.tokens.rollout_logprobs = batch.tokens.rollout_logprobs.double()  # the buffers of scores follow it
        super().make_updates(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{k: g[k] for k in ("params", "lr_factor")} for g in super().configure_optimizers().param_groups]
        return torch.optim.SGD(groups, lr=self.config.algorithm.optimizer.lr, foreach=False)

    def note(self, loss: float) -> None:
        found = {n: whole(p.grad).double() for n, p in self.trained().items() if p.grad is not None}
        self.updates.append({"loss": loss, "gradients": found, "before": self.weights()})

    def trained(self) -> dict[str, Tensor]:
        """Every trained parameter as the optimizer holds it, by name."""
        names = {id(p): n for n, p in self.named_parameters()}
        held = [p for group in self.optimizers().param_groups for p in group["params"]]  # type: ignore[union-attr]
        known = [names.get(id(p)) for p in held]
        order = [n for n, p in self.named_parameters() if p.requires_grad]
        # FSDP2 swaps parameters for unsharded ones at times; order is kept
        return dict(zip(order if None in known else known, held, strict=True))  # type: ignore[arg-type]

    def weights(self) -> dict[str, Tensor]:
        return {name: whole(tensor).double() for name, tensor in self.trained().items()}


def script(parts: Parts) -> Any:
    """Responses by a hash of their key: right, wrong or truncated, of unequal lengths."""
    answers = {problem.id: problem.answer for problem in parts.problems.train}
    tokenizer, limit = parts.tokenizer, parts.config.task.max_response_tokens

    def response(key: SampleKey) -> ScriptedResponse:
        draw = zlib.crc32(repr(key).encode())
        if draw % 5 == 0:
            text, ends = "9" * limit, False
        else:
            text, ends = " +-*"[draw // 5 % 4] * (draw // 20 % 6) + (answers[key.problem_id] if draw % 2 else "7"), True
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ends
        return ScriptedResponse(tuple(ids), tuple(-2.0 - (draw >> i) % 7 / 10 for i in range(len(ids))), finished=ends)

    return response


def run(out: Path, cell: str, config: Config) -> None:
    with joined(config.trainer) as ranks:
        parts = Parts(config)
        parts._build_engine = lambda: ScriptedEngine(script(parts))  # type: ignore[method-assign]
        module = Probe(config, cell.startswith("reference"), lambda: parts.policy, ranks, parts.fill)
        module.logs = False
        trainer = build_trainer(config, [])
        trainer.fit(module, datamodule=RolloutDataModule(config, parts, StopSignal(), ranks))
        found = {"updates": module.updates, "metrics": module.step_metrics, "after": module.weights()}
        torch.save(found, out / f"{cell}.{ranks.rank}.pt")


def overrides(cell: str) -> list[str]:
    way, algorithm = cell.split(":")
    size, given = WAYS[way]
    own = ALGORITHMS[algorithm]
    groups = [o for o in own if o.startswith(("algorithm=", "+"))]
    return [*groups, *COMMON, *given, *(o for o in own if o not in groups), f"trainer.devices={size}"]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for cell in sys.argv[2:]:
        config = compose(*overrides(cell))
        fork_ranks(WAYS[cell.split(":")[0]][0], cell, partial(run, out, cell, config))
