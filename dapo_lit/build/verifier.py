"""Builds the verifier of a config's reward."""

from dapo_lit.config.sections import ConfigError, Reward
from dapo_lit.rewards.verifier import Verifier


def build_verifier(reward: Reward, workers: int) -> Verifier:
    settings = reward.model_dump(exclude={"max_error_frac"})
    try:
        return Verifier(**settings | {"wrong_value": float(settings["wrong_value"])}, workers=workers)
    except ValueError as error:
        raise ConfigError(f"reward: {error}") from None
