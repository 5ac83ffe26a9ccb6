"""The probe of an engine: after the first weight sync of a process, and before its first sample, a few tokens are drawn
and scored by the trainer.

Two faults of an installation are found. An engine that computes other log-probs (weights that were not taken, another
scale of the logits) differs from the trainer. One that draws from another distribution than the one it reports, such as
the uniform one, gives tokens that are less likely than the policy's entropy explains: such a run goes on, and `no group
to learn from` is its only word.

Nothing that the run draws from is touched: the key of the probe's samples occurs in no step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import RolloutEngine, SampleKey, SampleRequest, Sampling, TokenIds
from dapo_lit.policy.attention import Layout, layout
from dapo_lit.policy.head import token_logprobs
from dapo_lit.policy.wrap import run
from dapo_lit.preflight.table import Finding
from dapo_lit.ranks import Ranks
from dapo_lit.step.scoring import PolicyForward

SAMPLES, TOKENS = 4, 32
"""Responses to one prompt, and most tokens of each."""
FULL_BOUND, NARROW_BOUND = 0.02, 0.15
"""Largest mean difference of log-probs, in nats, in 32-bit and in 16-bit arithmetic. Rounding gives 7e-6 and 0.01 in a
trained SmolLM2-135M (docs/mismatch.md), and up to 0.09 in 16 bits with random weights."""
UNLIKELY, UNLIKELY_ERRORS = 1.0, 5.0
"""Nats a token by which samples are less likely than the entropy says, and standard errors of it: both are refused."""
FEWEST = 16
"""Tokens from which likelihood is judged."""

Packed = tuple[Tensor, Layout, Tensor, Tensor]
Score = Callable[[Packed], tuple[Tensor, Tensor]]
"""The trainer's log-probs and entropies [n] of packed responses at the run's temperature. A collective of all ranks."""


def packed_responses(prompt: TokenIds, responses: Sequence[TokenIds], device: torch.device | str) -> Packed:
    """Token ids, layout, rows and targets of one prompt and its responses, as training packs them."""
    lengths = [len(prompt), *map(len, responses)]
    places = torch.arange(sum(lengths), device=device).split(lengths)
    # The hidden state before a token predicts it: the prompt's last one is that before every response.
    rows = torch.cat([torch.cat([places[0][-1:], place[:-1]]) for place in places[1:]])
    ids = torch.from_numpy(np.concatenate([prompt, *responses]).astype(np.int64)).to(device)
    return ids, layout(lengths, [-1] + [0] * len(responses), device=device), rows, ids[len(prompt) :]


def trainer_score(forward: PolicyForward) -> Score:
    """The log-probs and entropies that the trainer computes, without dropout, as when it scores a step."""

    def score(packed: Packed) -> tuple[Tensor, Tensor]:
        policy, trains = forward.policy, forward.policy.training
        policy.eval()
        try:
            found: tuple[Tensor, Tensor] = run(
                policy, token_logprobs, *packed, temperature=forward.temperature, fp32=forward.fp32_head
            )
        finally:
            policy.train(trains)
        return found

    return score


def probe_engine(
    engine: RolloutEngine,
    prompt: TokenIds,
    sampling: Sampling,
    score: Score,
    *,
    narrow: bool,
    device: torch.device | str,
    ranks: Ranks,
) -> Finding:
    """Raises ConfigError, on all ranks alike, for an engine that does not sample from the trainer's policy.

    narrow: engine or trainer computes in 16 bits.
    """
    keys = [SampleKey(0, "probe of the engine", 0, index) for index in range(SAMPLES)]
    drawn = sorted(
        engine.generate(
            [SampleRequest(key, prompt) for key in keys],
            replace(sampling, max_response_tokens=min(TOKENS, sampling.max_response_tokens)),
        ),
        key=lambda sample: sample.key.sample_index,
    )
    with torch.no_grad():
        logprobs, entropies = score(packed_responses(prompt, [sample.response_ids for sample in drawn], device))
    own, expected = logprobs.double().cpu(), entropies.double().cpu()
    found = torch.from_numpy(np.concatenate([sample.rollout_logprobs for sample in drawn])).double()
    surprise = -own - expected  # 0 on average if the tokens are the policy's
    error = float(surprise.std()) / math.sqrt(len(surprise)) if len(surprise) >= FEWEST else math.inf
    values = torch.stack([(found - own).abs().mean(), surprise.mean(), surprise.new_tensor(error)])
    difference, unlikely, errors = ranks.stack(values.nan_to_num(nan=math.inf, posinf=math.inf)).T
    bound = NARROW_BOUND if narrow else FULL_BOUND
    what = f"{len(found)} tokens of {SAMPLES} responses to a prompt"
    cure = (
        "this installation of the engine cannot train: docs/vllm.md names the versions that were tried, and "
        "rollout=torch samples without vLLM"
    )
    if (worst := float(difference.max())) > bound:
        raise ConfigError(
            f"the engine does not compute the policy: its log-probs of {what} differ from the trainer's by "
            f"{worst:.2g} nats a token, with the same weights ({bound:g} are allowed); {cure}"
        )
    if bool(((unlikely > UNLIKELY) & (unlikely > UNLIKELY_ERRORS * errors)).any()):
        raise ConfigError(
            f"the engine does not draw from the policy: {what} are {float(unlikely.max()):.2g} nats a token less "
            f"likely than its entropy explains, as of an engine that samples uniformly; {cure}"
        )
    return Finding(
        f"log-probs of {len(found)} sampled tokens are the trainer's, to {worst:.1g} nats ({bound:g} allowed)"
    )
