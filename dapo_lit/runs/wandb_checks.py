"""Whether Weights & Biases can take a run: looked at without torch, so that a missing login costs no time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature

from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Logger

SERVER_S = 20
"""Seconds in which the server must answer."""


def check_wandb(logger: Logger) -> None:
    """Raises ConfigError: Weights & Biases is asked for and has no login, does not answer or refuses an argument."""
    if not logger.wandb:
        return
    import wandb

    given = {key: value for key, value in logger.wandb.items() if value is not None}
    if unknown := given.keys() - signature(wandb.init).parameters:
        raise ConfigError(f"logger.wandb.{min(unknown)}: wandb.init has no such argument")
    mode = given.get("mode") or os.environ.get("WANDB_MODE") or "online"
    with wandb_named():
        wandb.Settings(mode=mode)  # checks it
        if mode == "online":
            _ = wandb.Api(timeout=SERVER_S).viewer  # asks the server who we are


@contextmanager
def wandb_named() -> Iterator[None]:
    """Turns an error of Weights & Biases into one line."""
    import wandb

    try:
        yield
    except (wandb.errors.Error, ValueError) as error:
        # ValueError: it refuses an argument.
        raise ConfigError(
            f"logger=wandb: {' '.join(str(error).split())} (logger.wandb.mode=offline needs no server)"
        ) from None
