"""Losses of single tokens (DAPO Eq. 8 to 10 and two relatives) and of whole completions (GSPO, GMPO), the weight of
each token (Eq. 12), KL penalties, and the loss of PPO's value function.

The loss of a mini-batch is

    loss = sum_b  weight_b * sum_t  mask_bt * token_loss_bt

with `token_loss` from, say, `clipped_policy_loss` and `weight` from `completion_weights`. All normalisation is in the
weights. They are computed once for the whole mini-batch over all ranks, before the first micro-batch, so any split into
micro-batches or ranks adds up to the same loss and gradient (except `microbatch`, which exists for comparison).
Nothing here knows about ranks: the caller undoes what a strategy that averages over ranks divides by.

Every loss is a `PolicyLoss` (tokens.py). One whose ratio belongs to a completion gives the completion's loss at each of
its tokens, so that the same weights apply.
"""

from typing import Literal

import torch
from jaxtyping import Float, Float64, Int, Num
from torch import Tensor

from dapo_lit.objective.needs import Needs
from dapo_lit.objective.tokens import (
    MAX_LOG_RATIO,
    Bounds,
    Statistics,
    Tokens,
    at_least_float32,
    clipped_tokens,
    importance_ratio,
    token_statistics,
    total,
)

Aggregation = Literal["minibatch", "group", "sample", "constant", "microbatch"]
KLEstimator = Literal["k1", "k2", "k3"]


@Needs(reads=("clip_low", "clip_high", "clip_dual"), on_page=True)
def clipped_policy_loss(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
    """DAPO Eq. 8 to 10 for each token, to be minimised: `-min(r A, clip(r, 1 - low, 1 + high) A)`."""
    ratio = importance_ratio(tokens.logprobs, tokens.old_logprobs)
    losses = clipped_surrogate(ratio, at_least_float32(tokens.advantages), bounds)
    return losses, token_statistics(tokens, bounds)


def clipped_surrogate(ratio: Float[Tensor, "n"], advantages: Float[Tensor, "n"], bounds: Bounds) -> Float[Tensor, "n"]:
    """`-min(r A, clip(r) A)`: the min keeps the bound of a clipped token, else its ratio.

    Differentiable in `ratio`, which may be that of a token or of a completion. The min by itself leaves the loss of
    tokens with A < 0 unbounded as the ratio grows; with a dual clip it is at most `-dual * A`.
    """
    # Masks instead of torch.min and torch.clamp: the tokens that metrics count as clipped are those without a gradient.
    low, high, dual = clipped_tokens(ratio, advantages, bounds)
    ratio = torch.where(low, 1 - bounds.low, torch.where(high, 1 + bounds.high, ratio))
    if bounds.dual is not None:
        ratio = torch.where(dual, bounds.dual, ratio)
    return -advantages * ratio


@Needs(own_samples=True)
def reinforce_loss(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
    """`-A log pi(token)` (Williams 1992; what RLOO, arXiv 2402.14740, minimises): no ratio and no clip.

    Correct on-policy only: with several updates per step, the later ones use samples of an older policy uncorrected.
    The value means little, the gradient is that of the expected reward.
    """
    losses = -at_least_float32(tokens.advantages) * at_least_float32(tokens.logprobs)
    return losses, token_statistics(tokens, bounds)


@Needs(reads=("clip_low", "clip_high"))
def cispo_loss(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
    """CISPO (MiniMax-M1, arXiv 2506.13585, Eq. 4 and 5): `-sg(clip(r, 1 - low, 1 + high)) A log pi`.

    The clipped ratio weighs REINFORCE and is itself constant (sg), so that every token keeps a gradient: where PPO's
    clip drops a token, CISPO bounds its weight. The paper has no lower bound, which is low = 1 here.
    """
    # Detached, or it would be a clipped PPO term with its gradient cut where the clip acts.
    weight = importance_ratio(tokens.logprobs, tokens.old_logprobs).detach().clamp(1 - bounds.low, 1 + bounds.high)
    losses = -weight * at_least_float32(tokens.advantages) * at_least_float32(tokens.logprobs)
    return losses, token_statistics(tokens, bounds)


def completion_weights(
    loss_tokens: Int[Tensor, "B"],
    group_index: Int[Tensor, "B"],
    micro_batch: Int[Tensor, "B"] | None = None,
    *,
    aggregation: Aggregation,
    max_response_tokens: int,
) -> Float64[Tensor, "B"]:
    """The weight of each loss token of a completion in the loss of its mini-batch (DAPO 3.3, Eq. 12).

    Call it once per mini-batch, with all completions of all ranks. With M completions that have loss tokens:

    | aggregation | weight of a token of completion b | source |
    |---|---|---|
    | `minibatch` | 1 / loss tokens of the mini-batch | the DAPO authors' code: every token weighs the same |
    | `group` | 1 / (groups with loss tokens * loss tokens of b's group) | Eq. 8 and 12 as printed, mean over prompts |
    | `sample` | 1 / (M * loss tokens of b) | GRPO, Eq. 5: every completion weighs the same |
    | `constant` | 1 / (M * max_response_tokens) | Dr. GRPO, arXiv 2503.20783 |
    | `microbatch` | m / (M * loss tokens of b's micro-batch of m completions) | older trainers: a mean of means |

    A completion without loss tokens weighs 0 and counts in no denominator; one with some masked tokens counts with the
    others. For `constant` this is a choice: Dr. GRPO's code also counts fully masked completions. Loss and gradient of
    `microbatch` depend on the split into micro-batches and ranks, so on memory settings: with 3 and 100 tokens of
    losses 1 and 0 it is 0.029 in one micro-batch and 0.5 in two.

    loss_tokens: of each completion, the number of tokens whose loss mask is True.
    group_index: equal for the completions of one prompt.
    micro_batch: equal for the completions of one micro-batch of one rank; only `microbatch` uses it.

    All weights are 0 if no completion carries loss.

    >>> completion_weights(torch.tensor([3, 1]), torch.tensor([0, 0]), aggregation="sample", max_response_tokens=8)
    tensor([0.1667, 0.5000], dtype=torch.float64)
    """
    # Float64: a count of 41 million tokens is not exact in float32.
    tokens = loss_tokens.double()
    has_loss = tokens > 0
    num_completions = has_loss.sum(dtype=torch.float64)
    match aggregation:
        case "minibatch":  # DAPO 3.3 token-level loss
            denominator = tokens.sum().expand_as(tokens)
        case "group":
            group_tokens = _sums(tokens, group_index)
            # Groups that are fully masked count neither above nor below the line.
            num_groups = len(torch.unique(group_index[has_loss]))
            denominator = num_groups * group_tokens
        case "sample":
            denominator = num_completions * tokens
        case "constant":
            denominator = (num_completions * max_response_tokens).expand_as(tokens)
        case "microbatch":
            assert micro_batch is not None
            share = _sums(has_loss.double(), micro_batch) / num_completions
            denominator = _sums(tokens, micro_batch) / share
    return torch.where(has_loss, 1.0 / denominator, 0.0)


def _sums(values: Num[Tensor, "B"], index: Int[Tensor, "B"]) -> Num[Tensor, "B"]:
    """For each element the sum of `values` over the elements with its index."""
    found, position = torch.unique(index, return_inverse=True)
    return values.new_zeros(len(found)).index_add_(0, position, values)[position]


def kl_penalty(
    logprobs: Float[Tensor, "n"], ref_logprobs: Float[Tensor, "n"], estimator: KLEstimator
) -> Float[Tensor, "n"]:
    """Estimates of KL(policy || reference) in nats from the sampled tokens (http://joschu.net/blog/kl-approx.html).

    With `d = logprobs - ref_logprobs`: k1 = d (unbiased, either sign), k2 = d^2 / 2 (biased, low variance), k3 =
    exp(-d) - 1 + d (unbiased, never negative; the term of GRPO, arXiv 2402.03300 Eq. 4; d is clamped to +-20 as in
    `importance_ratio`). DAPO has none (section 2.3). Unbiased refers to the value. The gradients differ: over the
    policy's own samples that of k1 has mean 0, that of k2 is the gradient of the KL, and that of k3 the gradient of
    KL(reference || policy).
    """
    difference = at_least_float32(logprobs) - at_least_float32(ref_logprobs)
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            difference = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            return torch.expm1(-difference) + difference


WEIGHED_BY_LENGTH = {
    "techniques.token_level_loss=true": "the loss is one of whole completions, and the token-level loss weighs them by "
    "length, where its source weighs them alike"
}


@Needs(reads=("clip_low", "clip_high"), whole_minibatch=True, warns=WEIGHED_BY_LENGTH)
def gspo_loss(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
    """GSPO (arXiv 2507.18071, Eq. 5 and 7): `-min(s A, clip(s, 1 - low, 1 + high) A)` with

        s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|) = exp(mean_t log(pi(y_it) / pi_old(y_it)))

    and A the mean over the completion's tokens. The paper's bounds are 3e-4 and 4e-4 (section 5.1): a mean over tokens
    changes far less than a token.
    """
    log_ratio = at_least_float32(tokens.logprobs) - at_least_float32(tokens.old_logprobs)
    ratio = _mean(log_ratio, tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantage = _mean(at_least_float32(tokens.advantages), tokens)
    losses = clipped_surrogate(ratio, advantage, Bounds(bounds.low, bounds.high))
    return losses, token_statistics(tokens, bounds)


@Needs(reads=("clip_low", "clip_high"), whole_minibatch=True, warns=WEIGHED_BY_LENGTH)
def gmpo_loss(tokens: Tokens, bounds: Bounds) -> tuple[Float[Tensor, "n"], Statistics]:
    """GMPO (arXiv 2507.20673): `-A (prod_t rho_t)^(1 / |y|)`, the geometric mean of the clipped ratios.

    Each token's ratio is clipped in log space before the mean, on the side that A pushes to: at exp(high) where A > 0,
    at exp(-low) where A < 0. The bounds are nats, not ratios; the paper clips at (e^-0.4, e^0.4). A is the mean over
    the completion's tokens.
    """
    advantage = _mean(at_least_float32(tokens.advantages), tokens)
    log_ratio = at_least_float32(tokens.logprobs) - at_least_float32(tokens.old_logprobs)
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    clipped = torch.where(advantage < 0, log_ratio.clamp(min=-bounds.low), log_ratio.clamp(max=bounds.high))
    return -advantage * _mean(clipped, tokens).exp(), token_statistics(tokens, bounds)


def completion_mean(values: Float[Tensor, "n"], completions: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The mean of `values` over the tokens of the same completion, at each token."""
    # In float64: the sum over a long completion, and that of its gradients, would lose two digits in float32.
    _, position, counts = torch.unique(completions, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(counts), dtype=torch.float64).index_add(0, position, values.double())
    return (sums / counts)[position].to(values.dtype)


def _mean(values: Float[Tensor, "n"], tokens: Tokens) -> Float[Tensor, "n"]:
    assert tokens.completions is not None
    return completion_mean(values, tokens.completions)


def clipped_value_loss(
    values: Float[Tensor, "n"], old_values: Float[Tensor, "n"], returns: Float[Tensor, "n"], *, clip: float | None
) -> tuple[Float[Tensor, "n"], Statistics]:
    """`max((V - R)^2, (V_clip - R)^2) / 2` with `V_clip = clip(V, V_old - clip, V_old + clip)`, for each token.

    Differentiable in `values`; the old ones are from before the updates of the step. The sums behind `critic/*` come
    with it. The clip is in the unit of the rewards; None: no clip. It is not in the PPO
    paper but in its authors' code (arXiv 2005.12729, section 3). It is pessimistic: a value that has left the range on
    the far side of R keeps its gradient, one that overshoots towards R has none.
    """
    values, old_values, returns = at_least_float32(values), old_values.detach(), returns.detach()
    unclipped = squared = (values - returns).square()
    if clip is not None:
        bounded = old_values + (values - old_values).clamp(-clip, clip)
        # The larger error: the clip may slow the value function down, never speed it up.
        squared = torch.maximum(squared, (bounded - returns).square())
    loss = squared / 2
    with torch.no_grad():
        # Against the values before the update: after it they have seen these returns.
        error = returns.double() - old_values.double()
        sums = {
            "critic_tokens": torch.ones_like(loss),
            "critic_loss": loss,
            "critic_clipped": squared > unclipped,
            "critic_value": old_values,
            "critic_return": returns,
            "critic_return_squared": returns.double().square(),
            "critic_error": error,
            "critic_error_squared": error.square(),
        }
    return loss, Statistics({name: total(value.detach()) for name, value in sums.items()}, {})


def finish_critic(statistics: Statistics) -> dict[str, float | None]:
    """`critic/*` from the reduced sums; None without a token.

    `critic/explained_variance` is `1 - Var(R - V_old) / Var(R)`: 1 for a perfect value function, 0 for a constant one,
    negative for one that is worse than a constant; None where the returns are all equal.
    """
    sums = {name: float(value) for name, value in statistics.sums.items()}
    count = sums.get("critic_tokens", 0.0)
    if not count:
        names = ("loss", "clip_frac", "value_mean", "return_mean", "explained_variance")
        return {f"critic/{name}": None for name in names}

    def variance(name: str) -> float:
        return sums[f"{name}_squared"] / count - (sums[name] / count) ** 2

    spread = variance("critic_return")
    # Equal returns leave a rounding of their square, not 0.
    negligible = spread <= 1e-12 * max(1.0, sums["critic_return_squared"] / count)
    return {
        "critic/loss": sums["critic_loss"] / count,
        "critic/clip_frac": sums["critic_clipped"] / count,
        "critic/value_mean": sums["critic_value"] / count,
        "critic/return_mean": sums["critic_return"] / count,
        "critic/explained_variance": None if negligible else 1 - variance("critic_error") / spread,
    }
