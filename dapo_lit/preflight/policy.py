"""Refuses, before any work, a policy whose log-probs in training would not be the model's own.

Training runs a model's layers with an attention function of its own (policy/attention.py) and computes logits from the
head's weight (policy/head.py). What a family adds in either place and these two do not know would be silently wrong, so
both ways are compared on a few tokens. Attention windows show only in longer texts: a model that has them is taken if
its family is tested.

The weights of a sharded policy do not exist yet when it is built. It is checked by name: parts that are known to be
unsupported are refused, and a family that no test covers gets a warning.
"""

from contextlib import suppress

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_lit.config import ConfigError
from dapo_lit.engines.protocol import RolloutEngine, SampleKey, SampleRequest, Sampling, TokenIds
from dapo_lit.policy.head import token_logprobs
from dapo_lit.preflight.engine import packed_responses
from dapo_lit.preflight.table import Finding
from dapo_lit.seeds import PROBE

FAMILIES = (
    "apertus", "arcee", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text",
    "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "granite", "granitemoe", "llama", "ministral", "mistral",
    "mixtral", "nanochat", "olmo", "olmo2", "olmo3", "opt", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe",
    "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip
"""Model types whose log-probs the tests compare with the model's own."""
SAMPLED = 16
"""Longest response that is compared."""
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference of a log-prob, in nats."""
MEAN_BOUND_16_BIT = 0.15
"""Mean difference in bfloat16 and float16, in nats. Rounding gives 1e-3 in a trained SmolLM2-135M, and 0.005 to 0.09 in
models of its size with random weights of standard deviation 0.02 to 0.08."""
PROMPT, RESPONSES = 6, (5, 8)
"""Tokens of the texts that are compared: two responses to one prompt."""
PACKED_LAYERS = {"full_attention", "sliding_attention", "attention", "mlp", "moe"}
"""Entries of `layer_types` that keep nothing from one token to the next, apart from attention that is checked."""


def check_policy(model: PreTrainedModel) -> Finding:
    """Refuses a model that training would compute differently than the model itself does.

    A sharded policy, whose weights are on the meta device, is checked by name only.
    """
    family = model.config.get_text_config().model_type
    words = f"{family}, {sum(p.numel() for p in model.parameters()):,} parameters"
    is_empty = any(p.is_meta for p in model.parameters())
    reason = _named_reason(model)
    if reason is None:
        reason = None if is_empty else _measured_reason(model)
    if reason is not None:
        raise ConfigError(
            f"the policy (model type {family!r}) cannot be trained: {reason}; the supported families are in "
            "docs/models.md"
        )
    if not is_empty:
        return Finding(f"{words}; training computes the model's own log-probs")
    untested = (
        f"the policy's model type {family!r} is not one of the tested families (docs/models.md), and a sharded "
        "policy cannot be compared with its model; a run with trainer.strategy=single budget.steps=1 can"
    )
    return Finding(
        f"{words}; checked by name, since its weights are not read yet", () if family in FAMILIES else (untested,)
    )


def _named_reason(model: PreTrainedModel) -> str | None:
    """A part of the model that training does not compute, found without its weights."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return f"its head is not a linear layer but {type(head).__name__}"
    if any(name.rpartition(".")[2].startswith("sink") for name, _ in model.named_parameters()):
        return "its layers have attention sinks, which the packed attention does not compute"
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if other := sorted(kinds - PACKED_LAYERS):
        return f"its layers of type {', '.join(other)} do not keep packed sequences apart"
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) and config.model_type not in FAMILIES:
        return "it has attention windows, and no test covers those of its family"
    return None


def _measured_reason(model: PreTrainedModel) -> str | None:
    before = model.config._attn_implementation
    try:
        with torch.no_grad():
            return _difference_reason(model)
    finally:
        model.set_attn_implementation(before)


def _difference_reason(model: PreTrainedModel) -> str | None:
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.randint(
        vocabulary, (PROMPT + sum(RESPONSES),), generator=torch.Generator(device="cpu").manual_seed(PROBE), device="cpu"
    )
    prompt, *responses = ids.to(model.device).split([PROMPT, *RESPONSES])
    with suppress(ValueError):  # a model with one implementation of its attention keeps it
        model.set_attn_implementation("eager")
    try:
        own = torch.cat([own_logprobs(model, torch.cat([prompt, r]))[PROMPT - 1 :] for r in responses])
    except Exception as error:  # broken sizes, other inputs than tokens
        return f"its own forward pass fails ({_first_line(error)})"
    if not own.isfinite().all():
        broken = [name for name, weights in model.named_parameters() if not weights.isfinite().all()]
        return "its log-probs are not finite" + "".join(f": {name} holds NaN or infinite values" for name in broken[:1])
    packed = packed_responses(prompt.cpu().numpy(), [response.cpu().numpy() for response in responses], model.device)
    try:
        found, _ = token_logprobs(model, *packed, temperature=1.0)
    except Exception as error:  # whatever transformers raises where a family does not take packed sequences
        return f"its layers do not run on packed sequences ({_first_line(error)})"
    excess = excess_of(found - own, model.dtype)
    return excess and (
        f"its own log-probs differ from those of training by {excess} for an unknown reason: something in its "
        "attention or head that training does not compute"
    )


def excess_of(difference: Tensor, dtype: torch.dtype) -> str | None:
    """The excess of differences of log-probs over what rounding explains, in words; None if there is none."""
    size, bound = difference.abs(), BOUNDS.get(dtype)
    worst, allowed = (size.mean(), MEAN_BOUND_16_BIT) if bound is None else (size.max(), bound)
    if worst <= allowed:
        return None
    return f"{worst:.2g} nats a token ({allowed:g} are allowed in {str(dtype).removeprefix('torch.')})"


def own_logprobs(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Log-probs of every token but the first, from the model's own logits."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def check_sampler(engine: RolloutEngine, model: PreTrainedModel, prompt_ids: TokenIds, limit: int) -> Finding:
    """Compares an engine's log-probs of a few tokens, sampled at temperature 1 with the weights of the last sync, with
    the model's own. A training does the same at every step (`mismatch/*`), an evaluation once, before it samples.
    """
    request = SampleRequest(SampleKey(0, "sampler check", 0, 0), prompt_ids)
    (sample,) = engine.generate([request], Sampling(min(SAMPLED, limit)))
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
