"""Classes that the config names: loggers, and callbacks of Lightning's or of the user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from dapo_lit.config import ConfigError
from dapo_lit.imports import NamedError, described, named_object

EXTRAS = {"TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}
"""Library that a logger of Lightning's needs."""


def built(key: str, settings: Mapping[str, Any], run: Path) -> Any:
    """The object that `_target_` and its arguments describe; `{run}` in a text stands for the run folder.

    Raises ConfigError: there is no such class, it lacks a library, or it refuses the arguments.
    """
    target = str(settings.get("_target_", ""))
    if not target:
        raise ConfigError(f"{key}: needs _target_, a class such as lightning.pytorch.callbacks.Timer")
    try:
        named_object(target)
    except NamedError as error:
        raise ConfigError(f"{key}: {error}") from error
    try:
        texts = {name: value.replace("{run}", str(run)) for name, value in settings.items() if isinstance(value, str)}
        return instantiate({**settings, **texts})
    except InstantiationException as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:  # Hydra's own, around it
            cause = cause.__cause__
        extra = EXTRAS.get(target.rpartition(".")[2])
        if extra and isinstance(cause, ImportError):
            raise ConfigError(f"logger={extra} needs a library: pip install {extra}") from None
        raise ConfigError(f"{key}: {target}: {described(cause)}") from None
