"""DAPO and its relatives once more, written from the papers: what the equivalence matrix holds the package against.

Everything is float64, padded on the right and eager, and nothing is shared with the package: a formula that is wrong
there is not wrong here as well. `Reference` is given the samples of a rollout step, the weights before each update and
the completions of each mini-batch, and gives the update's loss, whose gradient is autograd's.

Shapes: B completions, S tokens of prompt and response, T tokens of the longest response, those of an environment
included. Left out: how samples are
drawn, mini-batches shuffled and batches filled (docs/examples/dapo_in_one_file.py has those), the random choice of
Clip-Cov, and the clamp of log-ratios at 20 nats.

Readings that it shares with the package, where a paper leaves one open, and what decides them:
- Eq. 9 divides by std + 1e-6, the std with n - 1: verl 0.9, `compute_grpo_outcome_advantage(epsilon=1e-6)`, torch.std.
- Whitening divides by sqrt(var + 1e-8), the var with n - 1: verl 0.9, `masked_whiten`.
- `constant` counts the completions that carry loss. Dr. GRPO (arXiv 2503.20783) counts all, and masks none: they differ
  under overlong filtering only, which is DAPO's (section 3.4).
- All tokens at the threshold of the highest entropies are kept, ties within 3e-6 nats too: arXiv 2506.01939, Eq. 5,
  `H >= tau`; the width is float32's, which cannot tell such entropies apart.
- A correction weighs a token's own gradient where the ratio is a completion's: verl 0.9, `compute_policy_loss_gspo`,
  multiplies the token's loss by `rollout_is_weights`, and its gradient is that of the token's `log_prob`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """An algorithm by the papers' names; the defaults are DAPO's (arXiv 2503.14476) without length shaping."""

    loss: str = "clip"
    low: float = 0.2  # epsilon_low, Eq. 10
    high: float = 0.28  # epsilon_high
    dual: float | None = None  # arXiv 1912.09729
    advantage: str = "group"
    scale_by_std: bool = True
    whiten: bool = False
    gamma: float = 1.0
    lam: float = 1.0
    denominator: str = "minibatch"
    max_tokens: int = 10  # L_max
    cache: int | None = None  # L_cache of Eq. 13; None: no soft punishment
    factor: float = 1.0  # of the punishment, 1 in the authors' code
    punish: str = "all"  # whose punishment counts
    counts_all: bool = False  # tokens of an environment are part of |y| in Eq. 13
    wrong: float = -1.0  # Eq. 7
    epsilon: float = 1e-6  # Eq. 9
    hard: bool = False  # a truncated answer is a wrong one
    filtering: bool = False
    kl: str = "k3"
    kl_where: str = "loss"
    beta: float = 0.0
    bonus: float = 0.0
    control: tuple[float, float, float] | None = None  # target, delta and most of arXiv 2505.22312
    top_frac: float = 1.0
    cov: Mapping[str, float] = field(default_factory=dict)  # of Clip-Cov and KL-Cov
    correction: str | None = None
    band: tuple[float, float] = (0.0, 2.0)
    recompute: bool = True  # pi_old is the trainer's; else the engine's
    critic_clip: float | None = None
    critic_weight: float = 0.5
    temperature: float = 1.0
    lora_scale: float = 0.0


@dataclass(frozen=True)
class Samples:
    """What was sampled for one rollout step, group by group."""

    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]
    policy: Sequence[Sequence[bool]]  # whether the policy sampled each token; else an environment appended it
    engine_logprobs: Tensor  # [B, T]
    versions: Tensor  # [B, T], of the weights that sampled each token
    groups: Tensor  # [B]
    correct: Tensor  # [B] bool
    truncated: Tensor  # [B] bool
    turn_rewards: Tensor  # [B, T], what an environment gave for a turn, at the turn's last token


def padded(rows: Sequence[Sequence[float]], fill: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype)


# The model: Qwen2's, without a cache; padding on the right, which a causal mask keeps out of sight -----------------


def merged(weights: Weights, scale: float) -> dict[str, Tensor]:
    """LoRA (arXiv 2106.09685): W + scale B A in place of W; scale 0 is the base."""
    found = {n.replace(".base_layer", ""): w for n, w in weights.items() if ".lora_" not in n}
    for name, a in weights.items():
        if ".lora_A." in name and scale:
            matrix = name.replace(".lora_A.default", "")
            found[matrix] = found[matrix] + scale * weights[name.replace("lora_A", "lora_B")] @ a
    return found


def hidden_states(w: Weights, root: str, shape: Mapping[str, float], ids: Tensor) -> Tensor:
    """[B, S, hidden] after the last norm; `root` is where the backbone's names begin."""
    heads, keys, eps = int(shape["heads"]), int(shape["key_heads"]), shape["eps"]
    # as in transformers, the lookup of the pad token has no gradient
    x = F.embedding(ids, w[f"{root}embed_tokens.weight"], padding_idx=int(shape["pad"]))
    size, length = x.shape[-1] // heads, ids.shape[1]
    angles = torch.outer(torch.arange(length), shape["theta"] ** -(torch.arange(0, size, 2).double() / size))
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    hidden = torch.ones(length, length).triu(1).bool()

    def norm(x: Tensor, name: str) -> Tensor:
        return w[f"{root}{name}.weight"] * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

    for layer in range(int(shape["layers"])):
        at = f"layers.{layer}."

        def project(x: Tensor, name: str, at: str = at) -> Tensor:
            return F.linear(x, w[f"{root}{at}{name}.weight"], w.get(f"{root}{at}{name}.bias"))

        h = norm(x, at + "input_layernorm")
        q, k, v = (project(h, f"self_attn.{n}_proj").unflatten(-1, (-1, size)).transpose(1, 2) for n in "qkv")
        q, k = (y * cos + torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1) * sin for y in (q, k))
        k, v = (y.repeat_interleave(heads // keys, 1) for y in (k, v))
        seen = (q @ k.transpose(-1, -2) / size**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + project((seen @ v).transpose(1, 2).flatten(2), "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        x = x + project(F.silu(project(h, "mlp.gate_proj")) * project(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "norm")


# Rewards and advantages -----------------------------------------------------------------------------------------


def rewards(samples: Samples, s: Settings) -> Tensor:
    """[B]: Eq. 7; with the soft punishment plus Eq. 13."""
    lengths = torch.tensor([len(own) if s.counts_all else sum(own) for own in samples.policy]).double()
    right = samples.correct & ~samples.truncated if s.hard else samples.correct
    found = torch.where(right, 1.0, s.wrong).double()
    if s.cache is None:
        return found
    penalty = s.factor * torch.clamp((s.max_tokens - s.cache - lengths) / s.cache, -1.0, 0.0)
    passed = torch.stack([samples.correct[samples.groups == g].double().mean() for g in samples.groups])
    share = {
        "all": torch.ones_like(penalty), "mixed": (passed > 0).double(), "pass_rate": passed,
        "right": samples.correct.double(), "none": torch.zeros_like(penalty),
    }  # fmt: skip
    return found + share[s.punish] * penalty


def kl_estimate(new: Tensor, ref: Tensor, kind: str) -> Tensor:
    """Schulman's k1, k2 and k3 of KL(new || ref) from tokens of `new`, nats."""
    d = new - ref
    return {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[kind]


def advantages(reward: Tensor, there: Tensor, values: Tensor, groups: Tensor, s: Settings) -> Tensor:
    """[B, T] of the rewards [B, T] of tokens. there: the tokens of a response; values: of the states before them."""
    if s.advantage in ("group", "leave_one_out"):
        total, found = reward.sum(1), torch.zeros(len(reward)).double()
        for g in groups.unique():
            own = total[groups == g]
            if s.advantage == "leave_one_out":  # RLOO, arXiv 2402.14740, section 2.2
                found[groups == g] = own - (own.sum() - own) / (len(own) - 1)
            else:  # Eq. 9; without the division Dr. GRPO's, arXiv 2503.20783
                found[groups == g] = (own - own.mean()) / (own.std() + s.epsilon if s.scale_by_std else 1.0)
        return found[:, None] * there
    # GAE, arXiv 1506.02438, Eq. 16; with values of 0 and lam = 1 the discounted return of REINFORCE++. A token of an
    # environment is no action: the state after an action is the one before the next action.
    found, following, next_value = torch.zeros_like(reward), torch.zeros(len(reward)), torch.zeros(len(reward))
    for t in reversed(range(reward.shape[1])):
        delta = reward[:, t] + s.gamma * next_value - values[:, t]
        following = torch.where(there[:, t], delta + s.gamma * s.lam * following, following)
        found[:, t], next_value = there[:, t] * following, torch.where(there[:, t], values[:, t], next_value)
    return found


def correction_weights(old: Tensor, engine: Tensor, there: Tensor, s: Settings) -> Tensor:
    """[B, T] weights of pi_old / mu."""
    low, high = s.band
    rho = torch.exp(old - engine)
    if s.correction == "tis":  # Yao et al. 2025
        return rho.clamp(max=high)
    assert s.correction is not None
    total = ((old - engine) * there).sum(1, keepdim=True)
    if "sequence" in s.correction:  # Liu et al. 2025: the product over the completion, or nothing
        rho = torch.exp(total).expand_as(old)
    if "geometric" in s.correction:
        rho = torch.exp(total / there.sum(1, keepdim=True)).expand_as(old)
    if s.correction.startswith("weigh_") and "mask" not in s.correction:
        return rho.clamp(low, high)
    if s.correction.startswith("mask_"):
        return ((rho >= low) & (rho <= high)).to(old)
    return torch.where((rho >= low) & (rho <= high), rho, 0.0)  # IcePop: the token's ratio, or nothing


# The loss ---------------------------------------------------------------------------------------------------------


def clipped(ratio: Tensor, a: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Eq. 8 with the bounds of Eq. 10, to be minimised; the dual clip bounds it where A < 0."""
    loss = -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    return loss if dual is None else torch.where(a < 0, torch.minimum(loss, -dual * a), loss)


def policy_losses(
    new: Tensor, old: Tensor, a: Tensor, entropy: Tensor, there: Tensor, mask: Tensor, s: Settings
) -> Tensor:
    """[B, T] of a mini-batch. there: the tokens of a response; mask: those of them that carry loss."""
    kept = torch.ones_like(mask)
    if s.top_frac < 1:  # forking tokens, arXiv 2506.01939, section 5
        least = entropy[mask].topk(max(1, round(s.top_frac * int(mask.sum())))).values[-1]
        kept = entropy >= least - 3e-6  # tokens after the same tokens are ties
    new = weighted_gradient(new, kept)
    log_ratio = new - old
    ratio, lengths = log_ratio.exp(), there.sum(1, keepdim=True)
    covariance = (new - new[mask].mean()).detach() * (a - a[mask].mean())  # arXiv 2505.22617, section 3
    covariance = covariance.masked_fill(~mask, -torch.inf)
    match s.loss:
        case "clip":
            loss = clipped(ratio, a, s.low, s.high, s.dual)
        case "reinforce":
            loss = -a * new
        case "cispo":  # arXiv 2506.13585, Eq. 4 and 5
            loss = -ratio.detach().clamp(1 - s.low, 1 + s.high) * a * new
        case "gspo":  # arXiv 2507.18071, Eq. 5 and 7
            mean = (log_ratio * there).sum(1, keepdim=True) / lengths
            loss = clipped(mean.exp(), (a * there).sum(1, keepdim=True) / lengths, s.low, s.high).expand_as(a)
        case "gmpo":  # arXiv 2507.20673, Eq. 4: the geometric mean of min(r^sgn(A), clip(r^sgn(A)))^sgn(A)
            mean_a = (a * there).sum(1, keepdim=True) / lengths
            pushed = log_ratio * mean_a.sign()
            bounded = torch.minimum(pushed, pushed.clamp(-s.low, s.high)) * mean_a.sign()
            loss = (-mean_a * ((bounded * there).sum(1, keepdim=True) / lengths).exp()).expand_as(a)
        case "clip_cov":  # arXiv 2505.22617, section 4.2, with every candidate held back
            loss = clipped(ratio, a, s.low, s.high)
            cut = (a < 0) & (ratio < 1 - s.low) | (a > 0) & (ratio > 1 + s.high)
            loss = torch.where((covariance > s.cov["low"]) & (covariance < s.cov["high"]) & ~cut, 0.0, loss)
        case "kl_cov":
            most = covariance.flatten().topk(max(1, int(s.cov["frac"] * int(mask.sum())))).indices
            chosen = torch.zeros(mask.numel(), dtype=torch.bool).index_fill(0, most, True).view_as(mask)
            moved = chosen & (log_ratio.abs() > 1e-12)  # else two passes of the same weights, whose rounding has a sign
            loss = -ratio * a + torch.where(moved, s.cov["coefficient"] * log_ratio.abs(), 0.0)
        case _:
            raise ValueError(s.loss)
    return loss - torch.where(kept, 0.0, loss).detach()


def weighted_gradient(values: Tensor, weights: Tensor) -> Tensor:
    """The same values, whose gradients are multiplied by weights."""
    return values.detach() + weights * (values - values.detach())


def token_weights(mask: Tensor, groups: Tensor, micro: Tensor, s: Settings) -> Tensor:
    """[B, T]: one over the denominator of the mini-batch, 0 where masked. micro: the micro-batch of each completion."""
    lengths = mask.sum(1, keepdim=True).double()
    completions = (lengths > 0).sum()
    match s.denominator:
        case "minibatch":  # section 3.3: every token weighs the same
            below = lengths.sum().expand_as(lengths)
        case "group":  # Eq. 12 as printed, mean over prompts
            own = torch.stack([lengths[groups == g].sum() for g in groups])[:, None]
            below = own * len(groups[lengths[:, 0] > 0].unique())
        case "microbatch":  # a mean of the micro-batches' means, each with the weight of its completions
            own = torch.stack([lengths[micro == m].sum() for m in micro])[:, None]
            share = torch.stack([(lengths[micro == m] > 0).sum() for m in micro])[:, None] / completions
            below = own / share
        case "sample":  # Eq. 5
            below = completions * lengths
        case "constant":  # Dr. GRPO
            below = (completions * s.max_tokens).expand_as(lengths)
    return torch.where(mask, 1 / below, 0.0)


@dataclass(frozen=True)
class Known:
    """What is fixed before the first update of a step; every tensor is [B, T]."""

    there: Tensor
    mask: Tensor
    old: Tensor
    ref: Tensor
    correction: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor


class Reference:
    """The arithmetic of one run. start: all weights before training, as doubles; `shape`: of the transformer."""

    def __init__(self, s: Settings, shape: Mapping[str, float], start: Weights) -> None:
        self.s, self.shape, self.start = s, shape, start
        self.coefficient = self.bonus = s.bonus

    def after_step(self, entropy: float) -> None:
        """c_{k+1} of arXiv 2505.22312 from the mean entropy of step k, and the bonus that is in effect."""
        if self.s.control:
            target, delta, most = self.s.control
            step = delta if entropy <= target else -delta
            self.coefficient = max(0.0, min(most, self.coefficient + step))
            self.bonus = self.coefficient if entropy <= target else 0.0

    def _states(self, weights: Weights, root: str, samples: Samples) -> tuple[Tensor, Tensor]:
        """[B, T, hidden] of the state before each response token, and the tokens [B, T]."""
        rows = [[*p, *r] for p, r in zip(samples.prompts, samples.responses, strict=True)]
        hidden = hidden_states(weights, root, self.shape, padded(rows, dtype=torch.int64))
        width = max(map(len, samples.responses))
        at = torch.tensor([[min(len(p) - 1 + t, hidden.shape[1] - 1) for t in range(width)] for p in samples.prompts])
        return hidden[torch.arange(len(rows))[:, None], at], padded(samples.responses, dtype=torch.int64)

    def logprobs(self, weights: Weights, samples: Samples, scale: float | None = None) -> tuple[Tensor, Tensor]:
        """[B, T] log-probs of the responses' tokens, and entropies. scale: of the adapters; 0 leaves them out."""
        w = merged({**self.start, **weights}, self.s.lora_scale if scale is None else scale)
        hidden, tokens = self._states(w, "policy.model.", samples)
        head = w.get("policy.lm_head.weight", w["policy.model.embed_tokens.weight"])
        log_p = (hidden @ head.t() / self.s.temperature).log_softmax(-1)
        return log_p.gather(-1, tokens[..., None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)

    def values(self, weights: Weights, samples: Samples) -> Tensor:
        if "critic.head.weight" not in self.start:
            return torch.zeros(len(samples.responses), max(map(len, samples.responses)))
        w = merged({**self.start, **weights}, self.s.lora_scale)
        hidden, _ = self._states(w, "critic.backbone.", samples)
        return F.linear(hidden, w["critic.head.weight"], w["critic.head.bias"]).squeeze(-1)

    @torch.no_grad()
    def known(self, samples: Samples, weights: Weights, version: int) -> Known:
        """weights: before the first update of the step, which are those of `version`."""
        s, engine = self.s, samples.engine_logprobs
        there = padded(samples.policy).bool()
        mask = there & ~samples.truncated[:, None] if s.filtering else there
        own, ref = self.logprobs(weights, samples)[0], self.logprobs(self.start, samples, scale=0.0)[0]
        # older weights sampled a stale token: without a correction its old log-prob is theirs, the engine's
        stale = samples.versions != version
        old = own if s.recompute and s.correction else torch.where(stale, engine, own) if s.recompute else engine
        correction = correction_weights(old, engine, there, s) if s.correction else torch.ones_like(old)
        token_rewards = torch.zeros_like(old)
        if s.kl_where == "reward":  # arXiv 2203.02155, Eq. 2
            token_rewards = -s.beta * kl_estimate(old, ref, s.kl) * there
        last = torch.tensor([len(r) - 1 for r in samples.responses])
        token_rewards[torch.arange(len(last)), last] += rewards(samples, s)
        token_rewards += samples.turn_rewards  # as in SkyRL's new_env.mdx: each at the last token of its turn
        values = self.values(weights, samples) * there
        a = advantages(token_rewards, there, values, samples.groups, s)
        returns = a + values
        if s.whiten:  # over the tokens with loss: arXiv 2501.03262, 2005.12729
            a = (a - a[mask].mean()) / (a[mask].var() + 1e-8).sqrt()
        return Known(there, mask, old, ref, correction, a, values, returns)

    def losses(
        self, samples: Samples, known: Known, chosen: Tensor, weights: Weights, micro: Tensor
    ) -> tuple[Tensor, Tensor, dict]:
        """The policy's and the critic's loss of a mini-batch, and sums of statistics. chosen: its completions; micro:
        the micro-batch of each."""
        s = self.s
        part = replace(samples, **{f.name: _rows(getattr(samples, f.name), chosen) for f in fields(samples)})
        width = max(map(len, part.responses))
        k = Known(**{f.name: getattr(known, f.name)[chosen][:, :width] for f in fields(known)})
        new, entropy = self.logprobs(weights, part)
        weight = token_weights(k.mask, part.groups, micro, s)
        # verl's form for ratios of completions: a token's weight is that of its own gradient.
        corrected = weighted_gradient(new, k.correction)
        loss = policy_losses(corrected, k.old, k.advantages, entropy.detach(), k.there, k.mask, s)
        loss = loss + (loss * (k.correction - 1)).detach()
        if s.kl_where == "loss":
            loss = loss + s.beta * kl_estimate(new, k.ref, s.kl)
        loss = loss - self.bonus * entropy
        value = self.values(weights, part)
        squared = (value - k.returns) ** 2
        if s.critic_clip:  # arXiv 2005.12729, section 3
            bounded = k.values + (value - k.values).clamp(-s.critic_clip, s.critic_clip)
            squared = torch.maximum(squared, (bounded - k.returns) ** 2)
        ratio, a = (new - k.old).exp()[k.there].detach(), k.advantages[k.there]
        sums = {
            "clip/low_frac": ((a < 0) & (ratio < 1 - s.low)).sum(),
            "clip/high_frac": ((a > 0) & (ratio > 1 + s.high)).sum(),
            "policy/kl_old": (ratio - 1 - ratio.log()).sum(),
            "policy/entropy": entropy.detach()[k.there].sum(),
        }
        return (
            (weight * loss).sum(),
            s.critic_weight * (weight * squared / 2).sum(),
            {n: float(x) for n, x in sums.items()},
        )


def _rows(values: Tensor | Sequence, chosen: Tensor) -> Tensor | Sequence:
    return values[chosen] if isinstance(values, Tensor) else [values[i] for i in chosen.tolist()]


# The optimiser ------------------------------------------------------------------------------------------------------


def clip_scale(gradients: Weights, most: float) -> tuple[float, float]:
    """(norm of all gradients together, the factor that brings it to `most`)."""
    norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
    return norm, min(1.0, most / (norm + 1e-6))


class AdamW:
    """arXiv 1711.05101, Algorithm 2, with decay lr * lambda * weight."""

    def __init__(self, betas: tuple[float, float], eps: float, decay: float) -> None:
        self.betas, self.eps, self.decay, self.count, self.first, self.second = betas, eps, decay, 0, {}, {}

    def step(self, weights: Weights, gradients: Weights, lr: float) -> dict[str, Tensor]:
        """The weights after a step."""
        self.count += 1
        (one, two), after = self.betas, {}
        for name, g in gradients.items():
            m = self.first[name] = one * self.first.get(name, 0) + (1 - one) * g
            v = self.second[name] = two * self.second.get(name, 0) + (1 - two) * g**2
            m, v = m / (1 - one**self.count), v / (1 - two**self.count)
            after[name] = weights[name] - lr * (m / (v.sqrt() + self.eps) + self.decay * weights[name])
        return after
