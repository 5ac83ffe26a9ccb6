"""DAPO (arXiv 2503.14476) in one file: policy, sampler, dynamic sampling, reward, Eq. 8 to 13 and the training loop.

    python docs/examples/dapo_in_one_file.py POLICY_FOLDER [problems.jsonl]

It imports nothing of dapo_lit and reads from top to bottom. The policy is a Qwen2-shaped transformer with its HF folder
(config.json, model.safetensors, tokenizer.json); problems are rows of {id, problem, answer}, by default the four
questions of `+experiment=four_sums`. It has the package's random numbers, so that its metrics are the package's
(tests/test_one_file.py). It has no speed: no packing, no chunked head, one group after the other, one process.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

FOUR_SUMS = [("2 + 3 = ?", "5"), ("4 * 2 = ?", "8"), ("10 - 7 = ?", "3"), ("6 / 2 = ?", "3")]


@dataclass
class Settings:
    """The names of the switches are those of `algorithm.techniques`; the values those of `+experiment=four_sums`."""

    clip_higher: bool = True  # section 3.1
    dynamic_sampling: bool = True  # section 3.2
    token_level_loss: bool = True  # section 3.3
    soft_overlong_punishment: bool = True  # section 3.4
    overlong_filtering: bool = False  # section 3.4
    seed: int = 0
    steps: int = 120
    num_prompts: int = 32
    samples_per_prompt: int = 4  # G
    minibatch_prompts: int = 8
    epochs: int = 1
    max_rounds: int = 10
    max_response_tokens: int = 20  # L_max
    cache_tokens: int = 5  # L_cache
    clip_low: float = 0.2
    clip_high: float = 0.28
    lr: float = 1e-3
    eps: float = 1e-8  # AdamW's
    warmup_steps: int = 3
    grad_clip: float = 1.0
    answer_mark: str = ""  # "#": the answer stands after the last one; "": it is the last number of the response


@dataclass
class Response:
    prompt: list[int]
    tokens: list[int]  # with the EOS token where one ended the response
    correct: bool
    truncated: bool
    reward: float  # after shaping

    @property
    def row(self) -> list[int]:
        """What the policy reads."""
        return self.prompt + self.tokens

    @property
    def places(self) -> list[int]:
        """Where in the row each of its tokens is."""
        return list(range(len(self.prompt), len(self.row)))


# The policy ------------------------------------------------------------------------------------------------------


class Policy:
    """A Qwen2-shaped transformer; its weights are a dictionary by their names in the HF folder."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        rope = self.config.get("rope_parameters") or self.config
        self.heads, self.layers = self.config["num_attention_heads"], self.config["num_hidden_layers"]
        self.key_heads, self.size = self.config["num_key_value_heads"], self.config["hidden_size"] // self.heads
        self.frequencies = rope["rope_theta"] ** -(torch.arange(0, self.size, 2).float() / self.size)
        self.eos: int = self.config["eos_token_id"]
        self.weights = {name: w.float().requires_grad_() for name, w in load_file(folder / "model.safetensors").items()}

    def logits(self, ids: Tensor, past: dict[int, tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """[B, T, V] of the token after each of `ids` [B, T]; padding goes to the right. `past`: keys and values."""
        w, before = self.weights, past[0][0].shape[2] if past else 0
        # As in transformers, the lookup of a pad token, which a policy may sample, has no gradient.
        x = F.embedding(ids, w["model.embed_tokens.weight"], padding_idx=self.config["pad_token_id"])
        angles = torch.outer(torch.arange(before, before + ids.shape[1]).float(), self.frequencies).repeat(1, 2)
        for layer in range(self.layers):
            name = f"model.layers.{layer}."

            def project(x: Tensor, part: str, name: str = name) -> Tensor:
                return F.linear(x, w[f"{name}{part}.weight"], w.get(f"{name}{part}.bias"))

            h = self.norm(x, name + "input_layernorm")
            q, k, v = (
                project(h, f"self_attn.{part}_proj").unflatten(-1, (-1, self.size)).transpose(1, 2) for part in "qkv"
            )
            q, k = (y * angles.cos() + self.turned(y) * angles.sin() for y in (q, k))
            if past is not None:
                if before:
                    k, v = torch.cat([past[layer][0], k], 2), torch.cat([past[layer][1], v], 2)
                past[layer] = (k, v)
            gqa = self.heads != self.key_heads
            h = F.scaled_dot_product_attention(q, k, v, is_causal=before == 0, enable_gqa=gqa)
            x = x + project(h.transpose(1, 2).flatten(2), "self_attn.o_proj")
            h = self.norm(x, name + "post_attention_layernorm")
            x = x + project(F.silu(project(h, "mlp.gate_proj")) * project(h, "mlp.up_proj"), "mlp.down_proj")
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])  # tied, if there is none
        return self.norm(x, "model.norm") @ head.t()

    def norm(self, x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return self.weights[f"{name}.weight"] * scaled

    @staticmethod
    def turned(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def scores(self, responses: list[Response]) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T] log-probs and entropies of the response tokens, and the mask of those that are there."""
        width = max(len(r.tokens) for r in responses)
        ids = [r.row for r in responses]
        padded = torch.tensor([row + [self.eos] * (max(map(len, ids)) - len(row)) for row in ids])
        # The hidden state of a token predicts the next one.
        rows = torch.tensor([[place - 1 for place in r.places] + [0] * (width - len(r.tokens)) for r in responses])
        tokens = torch.tensor([r.tokens + [self.eos] * (width - len(r.tokens)) for r in responses])
        logits = self.logits(padded)
        log_p = logits[torch.arange(len(responses))[:, None], rows].log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        mask = torch.tensor([[t < len(r.tokens) for t in range(width)] for r in responses])
        return log_p.gather(-1, tokens[..., None]).squeeze(-1), entropy, mask


# The sampler: each token has its own uniform, whatever is sampled beside it --------------------------------------


def uniform(key: int, position: int) -> float:
    """The noise of a response's token: SplitMix64 of the response's key and the token's position."""
    wrap = (1 << 64) - 1
    bits = (key + (position + 1) * 0x9E3779B97F4A7C15) & wrap
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & wrap
    return (((bits ^ (bits >> 31)) >> 12) + 0.5) * 2.0**-52


@torch.no_grad()
def sample(policy: Policy, prompt: list[int], names: list[str], limit: int) -> list[list[int]]:
    """One response of at most `limit` tokens to `prompt` for each name; a name decides its response's noise."""
    keys = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in names]
    tokens: list[list[int]] = [[] for _ in names]
    past: dict[int, tuple[Tensor, Tensor]] = {}
    logits = policy.logits(torch.tensor([prompt] * len(names)), past)[:, -1]
    for position in range(limit):
        noise = torch.tensor([uniform(key, position) for key in keys], dtype=torch.float64)[:, None]
        cdf = logits.log_softmax(-1).exp().cumsum(-1, dtype=torch.float64)
        drawn = torch.searchsorted(cdf, noise * cdf[:, -1:], right=True)
        for response, token in zip(tokens, drawn.flatten().tolist(), strict=True):
            if policy.eos not in response:
                response.append(token)
        if all(policy.eos in response for response in tokens):
            break
        logits = policy.logits(drawn, past)[:, -1]
    return tokens


# The reward ------------------------------------------------------------------------------------------------------


def number(text: str | None) -> Fraction | None:
    try:
        return None if text is None else Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        return None


def is_correct(text: str, answer: str, mark: str) -> bool:
    if mark:
        found = text.rpartition(mark)[2] if mark in text else None
    else:
        numbers = re.findall(r"(?<![0-9.])-?-?[0-9]+(?:/[0-9]+)?", text)
        found = numbers[-1] if numbers else None
    value = number(found)
    return value is not None and value == number(answer)  # an answer in words is never matched: there is no number


def shaped_reward(correct: bool, length: int, truncated: bool, s: Settings) -> float:
    reward = 1.0 if correct else -1.0  # Eq. 7
    if s.soft_overlong_punishment:  # Eq. 13; a response cannot be longer than L_max
        start = s.max_response_tokens - s.cache_tokens
        return reward + (start - length) / s.cache_tokens if length > start else reward
    return -1.0 if truncated else reward  # what section 3.4 replaces


# Rollouts with dynamic sampling ----------------------------------------------------------------------------------

Respond = Callable[[Policy, Tokenizer, dict, list[str], Settings], list[Response]]


@cache
def permutation(num_problems: int, seed: int, epoch: int) -> list[int]:
    """The order in which an epoch visits the problems."""
    key = blake2b(f"{seed}/{epoch}".encode(), digest_size=16).digest()
    return sorted(range(num_problems), key=lambda i: blake2b(i.to_bytes(8), key=key, digest_size=16).digest())


def one_turn(policy: Policy, tokenizer: Tokenizer, problem: dict, names: list[str], s: Settings) -> list[Response]:
    """The group of a problem: a response for each name."""
    prompt, group = tokenizer.encode(problem["problem"]).ids, []
    for tokens in sample(policy, prompt, names, s.max_response_tokens):
        finished = tokens[-1] == policy.eos
        text = tokenizer.decode(tokens[:-1] if finished else tokens)
        correct = is_correct(text, problem["answer"], s.answer_mark)
        reward = shaped_reward(correct, len(tokens), not finished, s)
        group.append(Response(prompt, tokens, correct, not finished, reward))
    return group


def collect(
    policy: Policy, tokenizer: Tokenizer, problems: list[dict], position: int, step: int, s: Settings, respond: Respond
) -> tuple[list[list[Response]], int]:
    """The groups that are trained on, and the position in the order of problems after the last of them."""
    groups: list[list[Response]] = []
    visits: dict[str, int] = {}  # a problem may come several times in a step, with other noise each time
    for _ in range((s.max_rounds if s.dynamic_sampling else 1) * s.num_prompts):
        epoch, offset = divmod(position, len(problems))
        problem = problems[permutation(len(problems), s.seed, epoch)[offset]]
        position += 1
        visit = visits[problem["id"]] = visits.get(problem["id"], -1) + 1
        names = [f"{s.seed}|{step}|{visit}|{index}|{problem['id']}" for index in range(s.samples_per_prompt)]
        group = respond(policy, tokenizer, problem, names, s)
        # Eq. 11: 0 < right answers < G. Correctness counts, not the shaped reward.
        if not s.dynamic_sampling or 0 < sum(r.correct for r in group) < len(group):
            groups.append(group)
        if len(groups) == s.num_prompts:
            break
    return groups, position


# The loss --------------------------------------------------------------------------------------------------------


def advantages(group: list[Response]) -> list[float]:
    """Eq. 9: the group's rewards, centred and divided by their standard deviation.

    The paper leaves two things open: the deviation divides by G - 1, and 1e-6 is added to it, as in verl.
    """
    rewards = torch.tensor([r.reward for r in group], dtype=torch.float64)
    if rewards.max() - rewards.min() <= 4 * torch.finfo(torch.float32).eps * rewards.abs().max():
        return [0.0] * len(group)
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()


def loss_of(ratio: Tensor, advantage: Tensor, mask: Tensor, s: Settings) -> Tensor:
    """Eq. 8 of a mini-batch: [B, T] ratios, [B, 1] advantages, and the mask of the tokens that carry loss."""
    upper = s.clip_high if s.clip_higher else s.clip_low  # Eq. 10: decoupled bounds
    clipped = ratio.clamp(1 - s.clip_low, 1 + upper)
    token_loss = torch.where(mask, -torch.minimum(ratio * advantage, clipped * advantage), 0.0)
    lengths = mask.sum(1)
    if s.token_level_loss:
        # Eq. 12: every token weighs the same. As printed it divides by the tokens of one prompt's group; here, as the
        # paper's text asks, by those of the whole mini-batch (docs/paper_and_script.md).
        return token_loss.sum() / lengths.sum()
    kept = lengths > 0  # GRPO (Eq. 5): every response weighs the same
    return (token_loss.sum(1)[kept] / lengths[kept]).mean()


# The loop: Algorithm 1 -------------------------------------------------------------------------------------------


def minibatches(num_groups: int, s: Settings, step: int, epoch: int) -> list[list[int]]:
    """The groups of each mini-batch, in their order in the batch; fewer groups than planned are shared evenly."""
    digest = blake2b(repr((s.seed, step, epoch)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    order = torch.randperm(num_groups, generator=generator)
    return [sorted(part.tolist()) for part in order.tensor_split(math.ceil(num_groups / s.minibatch_prompts))]


def train_step(
    policy: Policy, optimizer: torch.optim.Optimizer, groups: list[list[Response]], step: int, s: Settings
) -> dict[str, float]:
    """All updates of one rollout step; returns its metrics, those of single tokens from the first epoch."""
    for group in optimizer.param_groups:
        group["lr"] = s.lr * min(1.0, step / s.warmup_steps)
    batch = [r for group in groups for r in group]
    losses, norms, tokens = [], [], {name: [] for name in ("high", "low", "kl", "prob", "entropy", "ratio")}
    with torch.no_grad():  # pi_old: the policy before the updates
        old_all = [policy.scores(group)[0] for group in groups]
    for epoch in range(s.epochs):
        for chosen in minibatches(len(groups), s, step, epoch):
            responses = [r for g in chosen for r in groups[g]]
            advantage = torch.tensor([a for g in chosen for a in advantages(groups[g])])[:, None]
            new, entropy, there = policy.scores(responses)
            old = torch.zeros_like(new)
            for row, g in enumerate(chosen):
                old[row * s.samples_per_prompt : (row + 1) * s.samples_per_prompt, : old_all[g].shape[1]] = old_all[g]
            ratio = (new - old).clamp(-20, 20).exp()  # r of Eq. 9; the bound keeps it finite
            kept = torch.tensor([not (s.overlong_filtering and r.truncated) for r in responses])[:, None]
            if epoch == 0:
                upper, r = 1 + (s.clip_high if s.clip_higher else s.clip_low), ratio.detach()
                tokens["high"] += ((advantage > 0) & (r > upper))[there].tolist()
                tokens["low"] += ((advantage < 0) & (r < 1 - s.clip_low))[there].tolist()
                log_ratio = (new.detach().double() - old.double())[there]
                tokens["kl"] += (log_ratio.expm1() - log_ratio).tolist()
                tokens["prob"] += old.double().exp()[there].tolist()
                tokens["entropy"] += entropy.detach()[there].tolist()
                tokens["ratio"] += r[there].tolist()
            if not (there & kept).any():
                continue
            loss = loss_of(ratio, advantage, there & kept, s)
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(list(policy.weights.values()), s.grad_clip)))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))

    def mean(values: list) -> float:
        return sum(values) / len(values)

    return {
        "batch/accuracy": mean([r.correct for r in batch]),
        "batch/length_mean": mean([len(r.tokens) for r in batch]),
        "batch/truncated_frac": mean([r.truncated for r in batch]),
        "loss/policy": mean(losses),
        "optim/grad_norm": mean(norms),
        "clip/high_frac": mean(tokens["high"]),
        "clip/low_frac": mean(tokens["low"]),
        "policy/kl_old": mean(tokens["kl"]),
        "policy/prob_mean": mean(tokens["prob"]),
        "policy/entropy": mean(tokens["entropy"]),
        "policy/ratio_max": max(tokens["ratio"]),
    }


def train(folder: Path, problems: list[dict], s: Settings, respond: Respond = one_turn) -> list[dict[str, float]]:
    """The metrics of every step."""
    policy, tokenizer = Policy(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    optimizer = torch.optim.AdamW(policy.weights.values(), lr=s.lr, eps=s.eps, weight_decay=0.0)
    rows, position = [], 0
    for step in range(1, s.steps + 1):
        groups, position = collect(policy, tokenizer, problems, position, step, s, respond)
        rows.append(train_step(policy, optimizer, groups, step, s) if groups else {})
        print(f"step {step}", " ".join(f"{name}={value:.4g}" for name, value in rows[-1].items()))
    return rows


if __name__ == "__main__":
    four_sums = [
        {"id": f"four_sums-{i}", "problem": text, "answer": answer} for i, (text, answer) in enumerate(FOUR_SUMS)
    ]
    given = four_sums
    if len(sys.argv) > 2:
        with Path(sys.argv[2]).open(encoding="utf-8") as file:
            given = [json.loads(line) for line in file]
    train(Path(sys.argv[1]), given, Settings())
