"""The group `algorithm`: the switches of DAPO and the settings of its relatives."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, create_model, model_validator

from dapo_lit.config.sections import Count, Fraction, Section
from dapo_lit.techniques import REGISTER

if TYPE_CHECKING:
    _Switches = Section
else:
    _Switches = create_model(
        "_Switches",
        __base__=Section,
        **{switch: (bool, Field(False, description=t.description)) for switch, t in REGISTER.items()},
    )


class Techniques(_Switches):
    """The switches, a field for each technique of the register. Each changes one thing and no value of another."""

    if TYPE_CHECKING:

        def __getattr__(self, switch: str) -> bool: ...


class Clip(Section):
    low: Annotated[float, Field(gt=0, le=1)]
    """epsilon_low: the ratio is clipped below at 1 - low; 1: no lower bound."""
    high: PositiveFloat
    """epsilon_high: clipped above at 1 + high when clip_higher is on (off: at 1 + low)."""
    dual: Annotated[float, Field(gt=1)] | None
    """Dual clip: for A < 0 the loss is bounded at -dual * A; null: off."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low}); clip-higher needs clip.high >= clip.low")
        return self


class Advantage(Section):
    estimator: Literal["group", "leave_one_out", "returns", "gae"]
    """Group-relative (Eq. 9), leave-one-out (RLOO), discounted returns (REINFORCE++), or GAE with a critic (PPO)."""
    scale_by_std: bool
    """Divide by the group's standard deviation (Eq. 9); off: Dr. GRPO."""
    unbiased_std: bool
    """Divide the sum of squares by G - 1; off: by G."""
    epsilon: PositiveFloat
    """Added to the standard deviation."""
    whiten: bool
    """Shift and scale the advantages to mean 0 and variance 1 over the loss tokens of the rollout batch."""
    gamma: Fraction
    """Discount a token, of `returns` and `gae`."""
    lam: Fraction
    """lambda of `gae`."""


class Overlong(Section):
    cache_tokens: Count
    """L_cache of Eq. 13: the last tokens before the limit, over which the penalty rises."""
    penalty_factor: PositiveFloat
    """The penalty at the limit; 1 in the paper."""
    hard_punishment: bool
    """While the soft punishment is off, a truncated answer is rewarded as wrong whatever it says."""


class DynamicSampling(Section):
    max_rounds: PositiveInt
    """At most max_rounds * num_prompts groups are generated in a step."""
    on_exhausted: Literal["error", "train_smaller", "top_up"]
    """When they run out: end with an error, train on the groups there are, or fill up with unmixed groups."""
    carry_over: Literal["none", "finished", "all"]
    """Groups behind the last accepted one: dropped, or the finished mixed ones, or unfinished ones too, go on."""
    max_staleness: Count
    """A carried-over group is dropped when a token of it was sampled more steps ago than this."""
    margin: Annotated[float, Field(ge=0)]
    """Standard deviations of the number of mixed groups that are asked for in addition; 0: as many as expected."""
    window: Annotated[float, Field(ge=1)]
    """Submission runs at most window * num_prompts groups ahead of the oldest unfinished one."""
    request_groups: PositiveInt | None
    """Groups submitted at once; null: as many as the share of mixed groups so far asks for."""
    max_empty_steps: PositiveInt
    """The run ends after this many steps in a row without any mixed group."""


Band = tuple[Fraction, Annotated[float, Field(ge=1)]]


class Correction(Section):
    """Weights of the policy's loss for the gap between the engine's distribution and pi_old."""

    kind: Literal["none", "tis", "sequence_mask", "icepop"]
    """None, truncated importance sampling, masked completions, or masked tokens; needs old_logprobs=recompute."""
    cap: Annotated[float, Field(ge=1)]
    """Of `tis`: the largest weight of a token."""
    sequence_band: Band
    """Of `sequence_mask`: completions whose ratio lies outside carry no loss."""
    token_band: Band
    """Of `icepop`: tokens whose ratio lies outside carry no loss."""


class Optimizer(Section):
    lr: PositiveFloat
    betas: tuple[Fraction, Fraction]
    eps: PositiveFloat
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Count
    """Rollout steps of linear warm-up."""
    schedule: Literal["constant", "linear"]
    """After the warm-up: constant, or linear decay to 0 at the last step."""
    grad_clip: PositiveFloat | None
    """Bound of the gradient norm of an update; null: none."""
    max_bad_updates: PositiveInt
    """The run stops after this many updates in a row with a loss or gradient that is not finite."""


class Entropy(Section):
    bonus: Annotated[float, Field(ge=0)]
    """Weight of the entropy (nats) that each token's loss is lowered by."""
    top_frac: Annotated[float, Field(gt=0, le=1)]
    """Only the share of the mini-batch's tokens with the highest entropy carries loss; 1: all."""


class KL(Section):
    beta: Annotated[float, Field(ge=0)]
    """Weight of the divergence from the policy that training began with; 0: none, and no reference is kept."""
    estimator: Literal["k1", "k2", "k3", "full"]
    """How the divergence at a token is estimated from the sampled token; full: exactly, over the vocabulary."""
    where: Literal["loss", "reward"]
    """A term of each token's loss (GRPO), or taken off each token's reward (PPO, REINFORCE++, RLOO)."""

    @model_validator(mode="after")
    def _full_in_the_loss(self) -> Self:
        if self.estimator == "full" and self.where == "reward":
            raise ValueError("estimator=full is a term of the loss: set where=loss, or estimator=k1")
        return self


class Critic(Section):
    backbone: Literal["separate", "shared"]
    """A copy of the policy's layers of its own, or the policy's."""
    lr: PositiveFloat
    """Learning rate of the critic, with the warm-up and schedule of the policy's."""
    loss_weight: PositiveFloat
    """Coefficient of the value loss."""
    clip: PositiveFloat | None
    """How far a value may move in a step, in the unit of the reward; null: no clip."""
    warmup_steps: Count
    """Rollout steps at the begin in which the critic alone is trained."""


class Algorithm(Section):
    family: str
    """What a run is called in its folder's name: `dapo` for the switches' own names, else the algorithm."""
    techniques: Techniques
    loss: str
    """`clip`, `reinforce`, `cispo`, `gspo`, `gspo_token`, `gmpo`, `clip_cov`, `kl_cov`, or package.module.function."""
    loss_options: dict[str, Any]
    """What the loss takes beside tokens and bounds."""
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
    """The value model of `advantage.estimator=gae`; null: none."""
    overlong: Overlong
    dynamic_sampling: DynamicSampling
    num_prompts: PositiveInt
    """Groups trained on in a rollout step."""
    samples_per_prompt: PositiveInt
    """G; where advantages or dynamic sampling compare within a group, at least 2."""
    minibatch_prompts: PositiveInt
    """Groups in an update; num_prompts / minibatch_prompts updates an epoch."""
    epochs: PositiveInt
    """Passes over a rollout batch: mu of the paper's Algorithm 1."""
    old_logprobs: Literal["recompute", "rollout"]
    """pi_old from a forward pass of the trainer, or from the engine that sampled."""
    correction: Correction
    optimizer: Optimizer

    @model_validator(mode="after")
    def _ratio_to_correct_by(self) -> Self:
        if self.correction.kind != "none" and self.old_logprobs == "rollout":
            raise ValueError(
                f"correction.kind={self.correction.kind} weighs by pi_old / mu; with old_logprobs=rollout pi_old is "
                "the engine's own mu: there is nothing to correct; set old_logprobs=recompute, or correction.kind=none"
            )
        return self

    @model_validator(mode="after")
    def _minibatch_divides(self) -> Self:
        if self.num_prompts % self.minibatch_prompts:
            divisors = [d for d in range(1, self.num_prompts + 1) if self.num_prompts % d == 0]
            raise ValueError(
                f"minibatch_prompts ({self.minibatch_prompts}) does not divide num_prompts ({self.num_prompts}); "
                f"use one of {divisors}"
            )
        return self

    @model_validator(mode="after")
    def _group_of_one(self) -> Self:
        compares = self.advantage.estimator in ("group", "leave_one_out")
        if self.samples_per_prompt == 1 and (compares or self.techniques.dynamic_sampling):
            key = f"advantage.estimator={self.advantage.estimator}" if compares else "techniques.dynamic_sampling=true"
            raise ValueError(f"samples_per_prompt is 1, and {key} needs a group to compare within; set at least 2")
        return self

    @model_validator(mode="after")
    def _critic_of_gae(self) -> Self:
        if (self.critic is not None) != (self.advantage.estimator == "gae"):
            raise ValueError(
                "advantage.estimator=gae and a critic go together: set both (algorithm=ppo shows how), or "
                "critic=null and another estimator"
            )
        return self
