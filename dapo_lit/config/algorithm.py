"""The group `algorithm`: DAPO's switches and the settings of related algorithms."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from ablations.border import FolderName
from dapo_lit.config.sections import Count, Fraction, Free, Listed, PositiveInt, Section
from dapo_lit.techniques import Switches


class Techniques(Section, Switches):
    """The switches. Each changes one thing and no value of another."""


class Clip(Section):
    low: Annotated[float, Field(gt=0, le=1)]
    """epsilon_low: lower bound of the ratio is 1 - low; 1: no lower bound."""
    high: Annotated[float, Field(gt=0, le=10)]
    """epsilon_high: upper bound is 1 + high with clip_higher, 1 + low without. Values below low are for controls."""
    dual: Annotated[float, Field(gt=1)] | None
    """Dual clip: for A < 0 the loss is at most -dual * A; null: off."""


class Advantage(Section):
    estimator: str
    """`group` (Eq. 9), `leave_one_out` (RLOO), discounted `returns` (REINFORCE++), `gae` with a critic (PPO), or
    package.module.function."""
    options: Free
    """Further arguments of an estimator of your own."""
    scale_by_std: bool
    """Divide by the group's standard deviation (Eq. 9); false: Dr. GRPO."""
    epsilon: PositiveFloat
    """Added to the standard deviation."""
    whiten: bool
    """Shift and scale the advantages to mean 0 and variance 1 over the loss tokens of the rollout batch."""
    gamma: Fraction
    """Discount per token for `returns` and `gae`."""
    lam: Fraction
    """lambda for `gae`."""


class Overlong(Section):
    cache_tokens: Count
    """L_cache of Eq. 13: the penalty rises over this many tokens before the limit."""
    penalty_factor: PositiveFloat
    """The penalty at the limit; 1 in the paper."""
    punish: str
    """The answers whose length penalty counts: `all` (Eq. 13 as printed), those of `mixed` groups, which have a right
    answer, all times the `pass_rate` of their group, `right` ones, or `none`; or package.module.function."""
    options: Free
    """Further arguments of a function of your own that says whose penalty counts."""
    counts: Literal["policy", "all"]
    """The length of an episode in Eq. 13: the tokens of the policy, or those of its environment too (docs/turns.md)."""
    hard_punishment: bool
    """Without the soft punishment, reward every truncated answer as wrong."""


MAX_EMPTY_STEPS = 3
"""A run ends after this many consecutive steps without a mixed group."""


class DynamicSampling(Section):
    filter_on: Literal["correctness", "shaped_reward"]
    """A group is kept if these differ within it: the verdicts (Eq. 11), or the rewards that advantages see."""
    pass_rate_margin: Annotated[float, Field(ge=0, lt=0.5)]
    """Keep groups whose share of right answers lies between margin and 1 - margin; 0: Eq. 11, 0.2: PRIME."""
    max_rounds: PositiveInt
    """A step generates at most max_rounds * num_prompts groups."""
    on_exhausted: Literal["error", "train_smaller", "top_up", "replay"]
    """Once these are used up: end with an error, train on fewer groups, or fill up with unmixed groups or with mixed
    ones of earlier steps."""
    carry_over: Literal["none", "finished", "all"]
    """Groups submitted after the last accepted one: drop all, keep finished mixed ones, or keep unfinished ones too."""
    max_staleness: Count
    """Drop a carried-over or replayed group when one of its tokens was sampled more steps ago than this."""
    request_groups: PositiveInt | None
    """Groups submitted at once; null: derived from the share of mixed groups so far."""


Momentum = Annotated[float, Field(ge=0, lt=1)]
Band = Listed[tuple[Fraction, Annotated[float, Field(ge=1)]]]


class Correction(Section):
    """Token weights that correct for the gap between the engine's distribution and pi_old."""

    kind: str
    """`none`; `tis`, `icepop`, `sequence_mask` or another of the table in docs/mismatch.md; or package.module.function.
    All but `none` need old_logprobs=recompute."""
    options: Free
    """Further arguments of a correction of your own."""
    band: Band | None
    """Bounds of the ratio: of the weight where it is one (`tis` has the upper one only), else of what carries loss.
    null: those of the kind's source."""


class Optimizer(Section):
    lr: Annotated[float, Field(gt=0, le=1)]
    """Learning rate of AdamW after the warm-up."""
    betas: Listed[tuple[Momentum, Momentum]]
    eps: PositiveFloat
    weight_decay: Annotated[float, Field(ge=0)]
    """AdamW's weight decay, of every trained parameter: norms and biases too, as in verl."""
    warmup_steps: Count
    """Rollout steps of linear warm-up."""
    schedule: Literal["constant", "linear"]
    """After the warm-up: constant, or linear decay to 0 at budget.steps."""
    grad_clip: PositiveFloat | None
    """Largest gradient norm of an update; null: no clipping."""


class Entropy(Section):
    bonus: Annotated[float, Field(ge=0)]
    """Weight of the entropy (nats) that is subtracted from each token's loss."""
    control: str
    """What moves that weight after each step, from `bonus` on: `none`; `target`, towards `options.target` nats
    (Skywork-OR1); or package.module.function."""
    options: Free
    """Of the controller: `target` has target, delta, least and most."""
    top_frac: Annotated[float, Field(gt=0, le=1)]
    """Share of the mini-batch's tokens, those with the highest entropy, that carries loss; 1: all."""


class KL(Section):
    beta: Annotated[float, Field(ge=0)]
    """Weight of the divergence from the initial policy; 0: no KL term and no reference model."""
    estimator: Literal["k1", "k2", "k3"]
    """Estimator of the divergence from the sampled token."""
    where: Literal["loss", "reward"]
    """Added to each token's loss (GRPO), or subtracted from its reward (PPO, REINFORCE++, RLOO)."""


class Critic(Section):
    lr: Annotated[float, Field(gt=0, le=1)]
    """Peak learning rate; warm-up and schedule are as the policy's, from the first step on."""
    loss_weight: PositiveFloat
    """Coefficient of the value loss."""
    clip: PositiveFloat | None
    """Largest change of a value in a step, in units of the reward; null: no clipping."""
    warmup_steps: Count
    """First rollout steps, in which only the critic is trained; the policy's learning rate warms up after them."""


class Algorithm(Section):
    family: FolderName
    """Name of the run's folder: `dapo` to name it from its switches, else the algorithm's name."""
    techniques: Techniques
    own_techniques: Listed[tuple[str, ...]]
    """Techniques of your own that are on: the records' paths, package.module.NAME (docs/new_loss.md)."""
    loss: str
    """`clip`, `reinforce`, `cispo`, `gspo`, `gmpo`, `clip_cov`, `kl_cov`, or package.module.function."""
    loss_options: Free
    """Further arguments of the loss."""
    clip: Clip
    advantage: Advantage
    token_level_denominator: Literal["minibatch", "group", "microbatch"]
    """With token_level_loss: tokens of the mini-batch (the authors' code), of a prompt's group (Eq. 8 literally), or of
    the micro-batch (older trainers; the gradient then depends on trainer.micro_batch_tokens)."""
    completion_level_denominator: Literal["sample", "constant"]
    """Without token_level_loss: the completion's own length (GRPO), or the response limit (Dr. GRPO)."""
    entropy: Entropy
    kl: KL
    critic: Critic | None
    """The value model for `advantage.estimator=gae`; null: none."""
    overlong: Overlong
    dynamic_sampling: DynamicSampling
    num_prompts: PositiveInt
    """Groups trained on in a rollout step."""
    samples_per_prompt: PositiveInt
    """G; at least 2 if advantages or dynamic sampling compare within a group."""
    minibatch_prompts: PositiveInt
    """Groups in an update; num_prompts / minibatch_prompts updates an epoch."""
    epochs: PositiveInt
    """Passes over a rollout batch: mu of the paper's Algorithm 1."""
    old_logprobs: Literal["recompute", "rollout"]
    """pi_old from a forward pass of the trainer, or from the engine that sampled."""
    correction: Correction
    optimizer: Optimizer

    def faults(self) -> Iterator[str]:
        if self.correction.kind != "none" and self.old_logprobs == "rollout":
            yield (
                f"correction.kind={self.correction.kind} weights tokens by pi_old / mu, and with old_logprobs=rollout "
                "pi_old is mu: set old_logprobs=recompute, or correction.kind=none"
            )
        if self.num_prompts % self.minibatch_prompts:
            # To the root only: a mistyped size must not be counted through.
            smaller = [d for d in range(1, math.isqrt(self.num_prompts) + 1) if self.num_prompts % d == 0]
            divisors = sorted({*smaller, *(self.num_prompts // d for d in smaller)})
            nearest = sorted(divisors, key=lambda d: abs(d - self.minibatch_prompts))[:8]
            yield (
                f"minibatch_prompts ({self.minibatch_prompts}) does not divide num_prompts ({self.num_prompts}); "
                f"use one of {sorted(nearest)}"
            )
        sampling, count = self.dynamic_sampling, self.samples_per_prompt
        margin = sampling.pass_rate_margin * count
        if margin and sampling.filter_on != "correctness":
            yield "dynamic_sampling.pass_rate_margin counts right answers: set dynamic_sampling.filter_on=correctness"
        elif margin and not any(margin < right < count - margin for right in range(1, count)):
            yield (
                f"dynamic_sampling.pass_rate_margin={sampling.pass_rate_margin} keeps no group of {count}: lower it, "
                "or raise samples_per_prompt"
            )
        if sampling.on_exhausted == "replay" and not sampling.max_staleness:
            yield "dynamic_sampling.on_exhausted=replay takes groups of earlier steps, and max_staleness=0 forbids them"
        if count == 1 and self.techniques.dynamic_sampling:
            yield (
                "samples_per_prompt is 1, and techniques.dynamic_sampling=true needs a group to compare within; set at "
                "least 2"
            )
