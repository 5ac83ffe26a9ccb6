"""Cells of the equivalence matrix: two or three rollout steps of an algorithm, computed in one way, on own processes.

    python -m lit.equivalence_case OUT CELL...   writes OUT/CELL.RANK.pt: the samples of every step, and of every update
                                                 its completions, loss, gradients and the weights before it

A cell is way:variant:algorithm. Each algorithm has its settings twice: as overrides for the package, and in the words
of tests/reference.py. Most cells sample from a script whose log-probs are off those of the policy, so that a correction
has something to correct. The optimiser is plain gradient descent, unless the algorithm is about AdamW, which would
divide a wrong scale out again.
"""

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lit.ranks_case import compose, fork_ranks, whole
from reference import Samples, Settings, padded
from scripted_engine import ScriptedEngine, ScriptedResponse
from torch import Tensor

from dapo_lit.build.components import RunComponents
from dapo_lit.config import Config
from dapo_lit.engines.protocol import NO_OBSERVATIONS, Sample, SampleKey
from dapo_lit.lit.datamodule import RolloutDataModule
from dapo_lit.lit.fit import build_trainer
from dapo_lit.lit.module import DAPOModule
from dapo_lit.lit.processes import joined
from dapo_lit.runs.preemption import StopSignal
from dapo_lit.step.batch import RolloutStep
from dapo_lit.step.updates import StepUpdates

CLIP, LR = 0.5, 0.2
"""A clip well below the norm, and steps large enough for ratios to leave their bounds within a rollout step."""
DECAY = 0.1
COMMON = (
    "+experiment=four_sums", "trainer.threads=1", "algorithm.num_prompts=4", "algorithm.minibatch_prompts=2",
    "algorithm.samples_per_prompt=4", "algorithm.epochs=2", "budget.steps=2", "evaluation.every=0",
    "task.num_heldout=1", "evaluation.samples=1", "logger.progress=none", "trainer.micro_batch_tokens=60",
    "task.max_response_tokens=10",
    "algorithm.overlong.cache_tokens=4", f"algorithm.optimizer.grad_clip={CLIP}", "algorithm.optimizer.warmup_steps=0",
    f"algorithm.optimizer.lr={LR}", "algorithm.dynamic_sampling.max_rounds=40", "rollout.temperature=0.8",
)  # fmt: skip
FSDP = ("trainer.strategy=fsdp", "trainer.sharding.dtype=null")
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "single": (1, ()),
    "fsdp 1": (1, FSDP),
    "fsdp 2": (2, FSDP),
    "16-bit copies": (2, ("trainer.strategy=fsdp", "trainer.sharding.dtype=bfloat16", "trainer.fp32_head=true")),
    "checkpointing": (1, ("trainer.activation_checkpointing=full",)),
    "compiled": (1, ("trainer.compile=true",)),
}
"""Way to compute -> (processes, overrides)."""
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "prefixes": (("trainer.shared_prompt=prefixes",), {}),
    "branches": (("trainer.shared_prompt=branches",), {}),
    "lora": (("policy.lora={rank: 4, alpha: 32}",), {"lora_scale": 8.0}),
    "ahead": (("rollout.steps_ahead=1", "budget.steps=3", "reward.function=wiring_rewards.even"), {}),
    "three ahead": (("rollout.steps_ahead=3", "budget.steps=5", "reward.function=wiring_rewards.even"), {}),
    "carried": (
        (
            "algorithm.dynamic_sampling={carry_over: all, request_groups: 6}",
            "budget.steps=3",
            "reward.function=wiring_rewards.even",
        ),
        {},
    ),
    "correction": (("algorithm.correction.kind=tis",), {"correction": "tis"}),
    "turns": (
        # The script answers in its place; its tokens count in Eq. 13 here, and under prefixes they do not.
        ("turns.environment=calculator", "turns.max_observation_tokens=8", "algorithm.overlong.counts=all"),
        {"counts_all": True},
    ),
    "turns and prefixes": (("trainer.shared_prompt=prefixes",), {}),
    "turns, corrected": (
        (
            "turns.environment=calculator",
            "turns.max_observation_tokens=8",
            "algorithm.overlong.counts=all",
            "algorithm.correction.kind=tis",
        ),
        {"counts_all": True, "correction": "tis"},
    ),
}
"""What is changed of every algorithm -> (overrides, the same for the reference). Steps ahead sample with the engine,
whose answers are all wrong: a function judges them, or whitening would divide rounding by rounding.
Under `turns` the script has tokens of an environment among those of the policy, and rewards of its turns."""
AHEAD = {"ahead": 1, "three ahead": 3, "carried": 0}
"""Variants that sample with the engine -> the steps ahead; 0: an unfinished answer is continued by the next step."""
SOFT, OFF = Settings(cache=4), Settings(high=0.2, denominator="sample")
CRITIC = ("algorithm=ppo", "algorithm.critic.warmup_steps=0", f"algorithm.critic.lr={LR}", "algorithm.kl.beta=0.5")
ALGORITHMS: dict[str, tuple[tuple[str, ...], Settings]] = {
    "dapo": ((), SOFT),
    "all five": (("algorithm.techniques.overlong_filtering=true",), replace(SOFT, filtering=True)),
    "naive grpo": (("algorithm=naive_grpo",), replace(OFF, hard=True)),
    "grpo": (("algorithm=grpo", "algorithm.kl.beta=0.5"), replace(OFF, beta=0.5)),
    "k2": (("algorithm.kl={beta: 0.5, estimator: k2}",), replace(SOFT, beta=0.5, kl="k2")),
    "group": (("algorithm.token_level_denominator=group",), replace(SOFT, denominator="group")),
    "dual clip": (("algorithm.clip.dual=1.1",), replace(SOFT, dual=1.1)),
    "rollout": (("algorithm.old_logprobs=rollout",), replace(SOFT, recompute=False)),
    "entropy bonus": (
        ("algorithm.techniques.clip_higher=false", "algorithm.entropy.bonus=0.2"), replace(SOFT, high=0.2, bonus=0.2),
    ),
    "forking tokens": (("algorithm.entropy.top_frac=0.3",), replace(SOFT, top_frac=0.3)),
    "dr_grpo": (("algorithm=dr_grpo",), replace(OFF, scale_by_std=False, denominator="constant", hard=True)),
    "rloo": (
        ("algorithm=rloo", "algorithm.kl.beta=0.5"),
        replace(OFF, loss="reinforce", advantage="leave_one_out", denominator="constant", beta=0.5, kl="k1",
            kl_where="reward"),
    ),
    "reinforce++": (
        ("algorithm=reinforce_plus_plus", "algorithm.kl.beta=0.5", "algorithm.techniques.overlong_filtering=true"),
        replace(OFF, denominator="minibatch", advantage="returns", whiten=True, beta=0.5, kl="k1", kl_where="reward",
            filtering=True),
    ),
    "gspo": (
        ("algorithm=gspo", "algorithm.clip={low: 0.1, high: 0.15}"), replace(OFF, loss="gspo", low=0.1, high=0.15),
    ),
    "gspo, some tokens": (
        (
            "algorithm=gspo", "algorithm.clip={low: 0.1, high: 0.15}", "algorithm.entropy.top_frac=0.5",
            "algorithm.correction={kind: icepop, band: [0.7, 1.5]}",
        ),
        replace(OFF, loss="gspo", low=0.1, high=0.15, top_frac=0.5, correction="icepop", band=(0.7, 1.5)),
    ),
    "gmpo": (
        ("algorithm=gmpo", "algorithm.clip={low: 0.1, high: 0.1}"),
        replace(OFF, loss="gmpo", low=0.1, high=0.1, hard=True),
    ),
    "cispo": (
        ("algorithm=cispo", "algorithm.clip={low: 0.1, high: 0.2}"),
        replace(OFF, loss="cispo", low=0.1, denominator="minibatch"),
    ),
    "clip-cov": (
        (
            "algorithm=clip_cov", "algorithm.clip={low: 0.2, high: 0.2}",
            "algorithm.loss_options={frac: 1.0, cov_low: 0.1, cov_high: 0.8}",
        ),
        replace(OFF, loss="clip_cov", denominator="minibatch", cov={"low": 0.1, "high": 0.8}),
    ),
    "kl-cov": (
        ("algorithm=kl_cov", "algorithm.loss_options={frac: 0.2, coefficient: 1.5}"),
        replace(OFF, loss="kl_cov", denominator="minibatch", cov={"frac": 0.2, "coefficient": 1.5}),
    ),
    "critic": (
        (*CRITIC, "algorithm.advantage.gamma=0.9", "algorithm.advantage.lam=0.8"),
        replace(OFF, denominator="minibatch", advantage="gae", whiten=True, gamma=0.9, lam=0.8, beta=0.5, kl="k1",
            kl_where="reward", critic_clip=0.2),
    ),
    "icepop": (
        ("algorithm.correction={kind: icepop, band: [0.7, 1.5]}",), replace(SOFT, correction="icepop", band=(0.7, 1.5)),
    ),
    "mask of tokens": (
        ("algorithm.correction={kind: mask_tokens, band: [0.7, 1.5]}",),
        replace(SOFT, correction="mask_tokens", band=(0.7, 1.5)),
    ),
    "weights of completions": (
        ("algorithm.correction={kind: weigh_sequences, band: [0.25, 1.5]}",),
        replace(SOFT, correction="weigh_sequences", band=(0.25, 1.5)),
    ),
    "geometric weights": (
        ("algorithm.correction={kind: weigh_geometric, band: [0.9, 1.1]}",),
        replace(SOFT, correction="weigh_geometric", band=(0.9, 1.1)),
    ),
    # Two bounds that no completion's product is near: 16 bits put 1.93 at 2.08, on the other side of the default of 2.
    "sequence mask": (
        ("algorithm.correction={kind: sequence_mask, band: [0.25, 1.5]}",),
        replace(SOFT, correction="sequence_mask", band=(0.25, 1.5)),
    ),
    "penalty by pass rate": (
        (
            "algorithm.overlong={punish: pass_rate, penalty_factor: 0.5}", "algorithm.clip={low: 0.02, high: 0.03}",
            "reward.wrong_value=0", "algorithm.advantage.epsilon=0.1",
        ),
        replace(SOFT, punish="pass_rate", factor=0.5, wrong=0.0, epsilon=0.1, low=0.02, high=0.03),
    ),
    "penalty in mixed groups, entropy control": (
        (
            "algorithm.overlong.punish=mixed", "algorithm.techniques.dynamic_sampling=false",
            # Small groups, of which some are all wrong: there it differs from the penalty of all answers.
            "algorithm.samples_per_prompt=2", "algorithm.num_prompts=8", "algorithm.minibatch_prompts=4",
            "algorithm.entropy={bonus: 0.2, control: target}",
            "++algorithm.entropy.options={target: 5.0, delta: 0.5, most: 0.6}",
        ),
        replace(SOFT, punish="mixed", bonus=0.2, control=(5.0, 0.5, 0.6)),
    ),
    "microbatch": (
        ("algorithm.token_level_denominator=microbatch", "trainer.micro_batch_tokens=24"),
        replace(SOFT, denominator="microbatch"),
    ),
    "parts of a user's file": (
        (
            "algorithm.loss=faithful_parts.clip", "algorithm.advantage.estimator=faithful_parts.group",
            "algorithm.overlong.punish=faithful_parts.in_part", "++algorithm.overlong.options={share: 1.0}",
            "algorithm.correction={kind: faithful_parts.icepop, band: [0.7, 1.5]}",
        ),
        replace(SOFT, punish="right", correction="icepop", band=(0.7, 1.5)),
    ),
    "adamw": (
        ("algorithm.optimizer={eps: 1e-3, weight_decay: 0.1, betas: [0.8, 0.9], lr: 0.002, schedule: linear}",), SOFT,
    ),
}  # fmt: skip
"""Algorithm -> (overrides, the same for the reference)."""


def settings_of(cell: str) -> Settings:
    """What the reference computes for a cell."""
    _, variant, algorithm = cell.split(":")
    found = replace(ALGORITHMS[algorithm][1], temperature=0.8, **VARIANTS[variant][1])
    # adapters have their base as reference: every algorithm without a divergence gets one
    return replace(found, beta=0.5) if variant == "lora" and not found.beta else found


def overrides(cell: str) -> list[str]:
    """What the package computes for a cell."""
    way, variant, algorithm = cell.split(":")
    size, given = WAYS[way]
    own, changed = ALGORITHMS[algorithm][0], VARIANTS[variant][0]
    if variant == "lora" and not ALGORITHMS[algorithm][1].beta:
        changed = (*changed, "algorithm.kl.beta=0.5")
    if variant not in AHEAD:  # the script of the engine is no policy's
        changed = (*changed, "preflight=false")
    groups = [o for o in own if o.startswith("algorithm=")]
    return [*groups, *COMMON, *given, *(o for o in own if o not in groups), *changed, f"trainer.devices={size}"]


class Watch:
    """Calls a function with the loss of each update and its micro-batches' completions, before its step. No module
    itself, or it would be a submodule."""

    def __init__(self, note: Callable[[float, list[list[int]]], None]) -> None:
        self.note, self.micro = note, list[list[int]]()

    def micro_batch(self, epoch: int, micro: Any, *_: Any) -> None:
        self.micro.append(micro.completions.unique().tolist())

    def update(self, loss: float, gradients: Sequence[Tensor]) -> None:
        self.note(loss, self.micro)
        self.micro = []


class Probe(DAPOModule):
    """Keeps the samples of every step, and every update's completions, loss, gradients and weights before it."""

    def __init__(self, config: Config, plain: bool, *given: Any) -> None:
        super().__init__(config, *given)
        self.plain, self.steps, self.chosen = plain, list[dict[str, Any]](), list[int]()
        self.observer = Watch(self.note)
        self.start: dict[str, Tensor] | None = None

    def configure_model(self) -> None:
        super().configure_model()
        if self.start is None:
            self.start = whole(dict(self.named_parameters()))

    def make_updates(self, batch: RolloutStep) -> None:
        groups = batch.collected.accepted
        self.steps.append({"version": batch.policy_version, "samples": samples_of(groups), "updates": []})
        super().make_updates(batch)
        self.steps[-1] |= {"metrics": self.step_metrics, "sampled": batch.metrics, "after": self.weights()}

    def step_updates(self, *given: Any) -> StepUpdates:
        updates = super().step_updates(*given)
        accumulate = updates.accumulate_gradient

        def noted(minibatch: Sequence[int], epoch: int) -> Tensor:
            self.chosen = list(minibatch)
            return accumulate(minibatch, epoch)

        updates.accumulate_gradient = noted  # type: ignore[method-assign]
        return updates

    def configure_optimizers(self) -> torch.optim.Optimizer:
        made = super().configure_optimizers()
        if not self.plain:
            return made
        groups = [{k: g[k] for k in ("params", "lr_factor")} for g in made.param_groups]
        return torch.optim.SGD(groups, lr=self.config.algorithm.optimizer.lr, foreach=False)

    def note(self, loss: float, micro: list[list[int]]) -> None:
        gradients = whole({n: p.grad for n, p in self.trained().items() if p.grad is not None})
        found = {"chosen": self.chosen, "loss": loss, "gradients": gradients, "before": self.weights()}
        # Of this rank: what depends on the split is compared in one process.
        place = {completion: index for index, each in enumerate(micro) for completion in each}
        found["micro"] = [place.get(completion, -1) for completion in self.chosen]
        self.steps[-1]["updates"].append(found)

    def trained(self) -> dict[str, Tensor]:
        """Every trained parameter as the optimizer holds it, by name."""
        names = {id(p): n for n, p in self.named_parameters()}
        held = [p for group in self.optimizers().param_groups for p in group["params"]]  # type: ignore[union-attr]
        known = [names.get(id(p)) for p in held]
        order = [n for n, p in self.named_parameters() if p.requires_grad]
        # FSDP2 swaps parameters for unsharded ones at times; order is kept
        return dict(zip(order if None in known else known, held, strict=True))  # type: ignore[arg-type]

    def weights(self) -> dict[str, Tensor]:
        return whole(self.trained())


def samples_of(groups: Sequence[Any]) -> Samples:
    """A batch in the words of the reference. A token's version is that of the weights that sampled it."""
    each = [(place, group, c) for place, group in enumerate(groups) for c in group.completions]
    return Samples(
        prompts=[list(group.prompt_ids) for _, group, _ in each],
        responses=[c.sample.row_ids.tolist() for _, _, c in each],
        policy=[in_row(c.sample, [True] * c.num_tokens, False) for _, _, c in each],
        engine_logprobs=padded([in_row(c.sample, c.sample.rollout_logprobs.tolist(), 0.0) for _, _, c in each]),
        versions=padded(
            [in_row(c.sample, [v for v, count in c.sample.versions for _ in range(count)], -1) for _, _, c in each]
        ),
        groups=torch.tensor([place for place, _, _ in each]),
        correct=torch.tensor([c.correct for _, _, c in each]),
        truncated=torch.tensor([c.truncated for _, _, c in each]),
        turn_rewards=padded([turn_rewards_in_row(c.sample) for _, _, c in each]),
    )


def turn_rewards_in_row(sample: Sample) -> list[float]:
    """The reward of each turn at its last token, 0 elsewhere."""
    given = iter(sample.turn_rewards)
    policy = in_row(sample, [True] * len(sample.response_ids), False)
    ends = [own and not after for own, after in zip(policy, [*policy[1:], False], strict=True)]
    return [next(given, 0.0) if end else 0.0 for end in ends]


def in_row(sample: Sample, values: list[Any], seen: Any) -> list[Any]:
    """A value for each token of an episode: those of the policy's tokens, and `seen` at the environment's."""
    found = list(values)
    # From behind, so that a place still counts tokens of the policy only.
    for place in sample.observations.places.tolist()[::-1]:
        found.insert(place, seen)
    return found


def script(parts: RunComponents, turns: bool = False) -> Any:
    """Responses by a hash of their key: right, wrong or truncated, of unequal lengths.

    turns: two in three have one or two observations, of up to three tokens each, and a reward for each turn.
    """
    answers = {problem.id: problem.answer for problem in parts.problems.train}
    tokenizer, limit = parts.tokenizer, parts.config.task.max_response_tokens

    def response(key: SampleKey) -> ScriptedResponse:
        draw = zlib.crc32(repr(key).encode())
        if draw % 5 == 0:
            text, ends = "9" * limit, False
        else:
            text, ends = " +-*"[draw // 5 % 4] * (draw // 20 % 6) + (answers[key.problem_id] if draw % 2 else "7"), True
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ends
        seen = NO_OBSERVATIONS
        for place in sorted({draw % 7 % len(ids), draw % 11 % len(ids)} - {0}) if turns and draw % 3 else ():
            seen = seen.followed_by([2 + (draw >> i) % 9 for i in range(1 + draw % 3)], place)
        logprobs = tuple(-2.2 - (draw >> i) % 16 / 8 for i in range(len(ids)))
        given = tuple((draw >> i) % 5 / 4 - 0.5 for i in range(1 + len(seen.by_place))) if turns else ()
        return ScriptedResponse(tuple(ids), logprobs, finished=ends, observations=seen, turn_rewards=given)

    return response


def shape_of(model: Any) -> dict[str, float]:
    """A Qwen2's sizes in the words of the reference."""
    rope = getattr(model, "rope_parameters", None) or {"rope_theta": model.rope_theta}
    return {
        "heads": model.num_attention_heads, "key_heads": model.num_key_value_heads, "layers": model.num_hidden_layers,
        "eps": model.rms_norm_eps, "pad": model.pad_token_id, "theta": rope["rope_theta"],
    }  # fmt: skip


def run(out: Path, cell: str, config: Config) -> None:
    _, variant, algorithm = cell.split(":")
    with joined(config.trainer) as ranks:
        parts = RunComponents(config)
        if variant not in AHEAD:
            parts.engine = lambda *_: ScriptedEngine(script(parts, variant.startswith("turns")))  # type: ignore[method-assign]
        module = Probe(config, algorithm != "adamw", lambda: parts.policy, ranks, parts.fill)
        module.logs = False
        trainer = build_trainer(config, [])
        trainer.fit(module, datamodule=RolloutDataModule(config, parts, StopSignal(), ranks))
        found = {"steps": module.steps, "start": module.start, "shape": shape_of(parts.policy.config)}
        torch.save(found, out / f"{cell}.{ranks.rank}.pt")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for cell in sys.argv[2:]:
        config = compose(*overrides(cell))
        fork_ranks(WAYS[cell.split(":")[0]][0], cell, partial(run, out, cell, config))
