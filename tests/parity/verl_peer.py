"""verl's own functions on our batches, called as `verl.workers.utils.losses.ppo_loss` calls them."""

from typing import Any

from batches import Batch
from comparison import Result
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

__all__ = ["agg_loss", "policy_loss"]

NO_DUAL_CLIP = 1e9
"""verl always applies its dual clip; ratios end at exp(20) = 4.9e8, so this bound is never reached."""


def policy_loss(
    batch: Batch,
    mode: str = "vanilla",
    aggregation: str = "token-mean",
    *,
    low: float = 0.2,
    high: float = 0.28,
    dual: float = NO_DUAL_CLIP,
    scale: int | None = None,
    global_batch_size: int | None = None,
    **loss_settings: Any,
) -> Result:
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        use_dynamic_bsz=True,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
        policy_loss=PolicyLossConfig(loss_mode=mode, **loss_settings),
    )
    config.global_batch_info["loss_scale_factor"] = scale
    config.global_batch_info["global_batch_size"] = global_batch_size
    logprobs = batch.logprobs.clone().requires_grad_()
    loss, _ = get_policy_loss_fn(mode)(
        old_log_prob=batch.old_logprobs,
        log_prob=logprobs,
        advantages=batch.token_advantages,
        response_mask=batch.loss_mask,
        loss_agg_mode=aggregation,
        config=config,
    )
    loss.backward()
    return loss, logprobs.grad
