"""Silences what Lightning and transformers print and what does not apply to the commands."""

import logging
import warnings

from transformers.utils.logging import disable_progress_bar


def silence_libraries() -> None:
    warnings.filterwarnings("ignore", module="lightning")  # its advice on loaders and eval mode does not apply here
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    disable_progress_bar()  # of loading a model
