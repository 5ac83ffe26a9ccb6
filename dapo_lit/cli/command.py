"""Runs a command: checks the overrides before Hydra sees them, parses the composed config, reports faults.

A user's mistake (config, data, model) gives one message and exit code 2; any other error keeps its traceback. In a
multirun, a failed run does not stop the others, and the exit code says that one failed.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dapo_lit.cli.study_launch import prepare, quote_arms, with_arm
from dapo_lit.config import Config, ConfigError, Section, config_folder, known_keys, parse_as, unknown_key
from dapo_lit.config.groups import group_fault
from dapo_lit.data.sources import DataError
from dapo_lit.ranks import LostRankError
from dapo_lit.rollout.collect import ExhaustedError
from dapo_lit.step.optimizer_steps import NonFiniteError

USER_ERRORS = (ConfigError, DataError, ExhaustedError, NonFiniteError, FloatingPointError, OSError)
"""Errors that the user can fix, reported without a traceback."""


def check_overrides(arguments: Sequence[str], schema: type[Section] = Config) -> None:
    """Refuses unknown keys and unknown choices of groups, and suggests the nearest known ones.

    Raises:
        ConfigError: one line per unknown key or choice.
    """
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    own_groups = any(a.startswith(("--config-dir", "-cd", "hydra.searchpath")) for a in arguments)
    faults: list[str | None] = []
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        path = key.split(".")
        if (config_folder() / key).is_dir() and path[0].split("/")[0] != "hydra":
            if not own_groups:
                chosen = override.value().list if override.is_choice_sweep() else [override.value()]
                faults.append(group_fault(key, chosen, override.is_add()))
            continue
        if override.is_add() or path[0].split("/")[0] == "hydra":
            continue
        for depth in range(len(path)):
            siblings = known_keys(path[:depth], schema)
            if siblings is None:
                break
            if path[depth] not in siblings:
                faults.append(unknown_key(path[: depth + 1], schema))
                break
    if any(faults):
        raise ConfigError("\n".join(filter(None, faults)))


Schema = TypeVar("Schema", bound=Section)


def compose_run(tree: DictConfig, schema: type[Schema]) -> Schema:
    """Checks a composed config; a cell of a study gets the values of its arm."""
    if schema is Config:
        config = with_arm(tree)
        assert isinstance(config, schema)
        return config
    container = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(container, dict)
    return parse_as({str(key): value for key, value in container.items()}, schema)


def run_command(run: Callable[[Schema, list[str]], None], schema: type[Schema], config_name: str) -> int:
    """Composes and checks the config, calls `run(config, overrides)` and returns the exit code.

    USER_ERRORS are printed and give 2; other errors in a multirun are printed and give 1, after the remaining runs.
    """
    codes: list[int] = []
    parent = os.getpid()

    def failed(code: int, error: Exception) -> None:
        codes.append(code)
        if os.getpid() != parent:  # a launcher's worker, which reports a failure only by the error
            raise error

    def task(tree: DictConfig) -> None:
        choices = HydraConfig.get()
        multirun = choices.mode == RunMode.MULTIRUN
        try:
            config = compose_run(tree, schema)
            if multirun and isinstance(config, Config) and config.trainer.devices > 1:
                # Lightning's launcher would start every process with -m again, and each would run the whole sweep.
                raise ConfigError("a multirun needs trainer.devices=1, or ranks that torchrun or srun starts")
            run(config, list(choices.overrides.task))
        except USER_ERRORS as error:
            print(f"error: {error}", file=sys.stderr)
            failed(2, error)
        except LostRankError as error:
            print(f"error: {error}", file=sys.stderr)
            failed(1, error)
        except Exception as error:
            if not multirun:
                raise
            traceback.print_exc()
            failed(1, error)

    try:
        sys.argv[1:] = [quote_arms(argument) for argument in sys.argv[1:]]
        check_overrides(sys.argv[1:], schema)
        if schema is Config:
            sys.argv[1:] = prepare(sys.argv[1:])
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name=config_name)(task)()
    return max(codes, default=0)
