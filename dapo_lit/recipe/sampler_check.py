"""Compares an engine's log-probs of a few sampled tokens with the model's own, before an evaluation samples thousands.

A training does the same at every step (`mismatch/*`).
"""

import torch
from transformers import PreTrainedModel

from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import RolloutEngine, SampleRequest, Sampling
from dapo_lit.engines.samples import SampleKey, TokenIds
from dapo_lit.recipe.policy_check import excess_of, own_logprobs
from dapo_lit.recipe.preflight import Finding

TOKENS = 16
"""Longest response that is compared."""


def check_sampler(engine: RolloutEngine, model: PreTrainedModel, prompt_ids: TokenIds, limit: int) -> Finding:
    """Samples one response at temperature 1, with the weights of the last sync.

    Raises:
        ConfigError: the engine samples from another distribution than the model's.
    """
    request = SampleRequest(SampleKey(0, "sampler check", 0, 0), prompt_ids)
    (sample,) = engine.generate([request], Sampling(min(TOKENS, limit)))
    ids = torch.tensor([*prompt_ids, *sample.response_ids], device=model.device)
    with torch.no_grad():
        own = own_logprobs(model, ids)[len(prompt_ids) - 1 :].cpu()
    found = torch.from_numpy(sample.rollout_logprobs.copy())
    if excess := excess_of(found - own, model.dtype):
        raise ConfigError(
            f"the log-probs of the engine differ from the model's own by {excess}: it would sample from another "
            f"distribution than that of model type {model.config.model_type!r}; use another rollout"
        )
    return Finding(f"log-probs of {len(found)} sampled tokens are the model's own")
