"""Runs a command: checks the command line before Hydra and torch see it, parses the composed config, reports faults.

A user's mistake (config, data, model) gives one message and exit code 2; any other error keeps its traceback. In a
multirun, a failed run does not stop the others, and the exit code says that one failed. Nothing here loads torch,
transformers or pandas before it is needed, so that `--help` and a typo are answered in a second.
"""

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from string import Template
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablations.errors import UserError
from ablations.files.atomic import is_full
from ablations.screen import on_screen
from ablations.texts import read_text, yaml_tree
from dapo_lit.cli.config_tree import composed_tree, composition_fault, config_of, refusals_in_one_line
from dapo_lit.cli.jobs import check_jobs
from dapo_lit.cli.overrides import (
    check_overrides,
    choices_as_text,
    flags_first,
    folders_as_setting,
    is_inspection,
    parsed,
    quote_arms,
    starts_study,
    study_last,
    written_out,
)
from dapo_lit.config import Config, ConfigError, Section, config_folder
from dapo_lit.config.parsing import Schema
from dapo_lit.config.shipped import brings_regime, known_choices, known_groups, own_folders

if TYPE_CHECKING:
    from dapo_lit.cli.study_launch import Sweep

USERS = (UserError, FloatingPointError, OSError, HydraException, OmegaConfBaseException)
"""Errors that users can fix, which are reported without a traceback."""


def exit_code_of(run: Callable[[], None]) -> int:
    """Calls `run` and returns the exit code; a user's mistake is printed as one message."""
    try:
        run()
    except USERS as error:
        is_hydras = isinstance(error, (HydraException, OmegaConfBaseException))
        print(f"error: {composition_fault(error) if is_hydras else in_words(error)}", file=sys.stderr)
        return 2
    return 0


def in_words(error: Exception) -> str:
    """The message of a user's error; of a full disk, what to do."""
    if isinstance(error, OSError) and is_full(error):
        return f"the disk is full: {error}; free some space, and resume=true continues the run"
    return str(error)


@refusals_in_one_line()
def compose_run(tree: DictConfig, schema: type[Schema]) -> Schema:
    """Checks a composed config; a cell of a study gets the values of its arm."""
    # A cell of a study: its arm sets the switches. Imported here, as a plain run needs none of it.
    if schema is Config and tree.study is not None:
        from dapo_lit.cli.study_launch import with_arm

        tree = with_arm(tree)
    return config_of(tree, schema)


@on_screen()
def run_command(
    run: Callable[[Schema, list[str]], None],
    schema: type[Schema],
    config_name: str,
    positional: str | None = None,
    run_study: "Callable[[Sweep], int] | None" = None,
) -> int:
    """Composes and checks the config, calls `run(config, overrides)` and returns the exit code.

    A user's mistakes are printed and give 2; other errors in a multirun are printed and give 1, after the remaining
    runs.

    positional: the key that an argument without `=` is the value of; None: there is no such argument.
    run_study: runs the cells of a study and returns the exit code; None: the command has no studies.
    """
    prepared: list[tuple[list[str], Sweep | None]] = []
    if code := exit_code_of(lambda: prepared.extend(checked(sys.argv[1:], schema, positional))):
        return code
    return max(
        run_study(study) if study and run_study else run_arguments(line, run, schema, config_name)
        for line, study in prepared
    )


def as_hydra_takes(given: Sequence[str], schema: type[Section], positional: str | None = None) -> list[str]:
    """A command line as Hydra takes it, each override checked against the schema.

    Raises ConfigError: one of them cannot be right.
    """
    # Before Hydra: it answers a flag between overrides, or an unquoted arm, with a parser's message.
    arguments = study_last(map(quote_arms, folders_as_setting(flags_first(written_out(given, positional)))))
    arguments = choices_as_text(arguments)
    if brings_regime(arguments):
        arguments = [argument.replace("+regime=", "regime=") for argument in arguments]
    # Each override against the schema, so that a typo is answered in a second and with the nearest key.
    check_overrides(arguments, schema)
    return arguments


def checked(given: list[str], schema: type[Section], positional: str | None) -> "list[tuple[list[str], Sweep | None]]":
    """The command line as Hydra takes it, and the cells of a study; one for each state of a fork."""
    if "answer" in schema.model_fields:
        given = ["answer=json" if argument == "--json" else argument for argument in given]
    arguments = as_hydra_takes(given, schema, positional)
    found: list[tuple[list[str], Sweep | None]]
    if schema is Config and starts_study(arguments):
        from dapo_lit.cli.fork import for_each_state
        from dapo_lit.cli.study_launch import prepare

        # The plan of a study is made and checked before its first cell starts.
        found = [*map(prepare, for_each_state(arguments))]
    else:
        found = [(arguments, None)]
    for line, study in found:
        if schema is Config and study is None:
            check_jobs(line)
    return found


def run_arguments(
    arguments: list[str], run: Callable[[Schema, list[str]], None], schema: type[Schema], config_name: str
) -> int:
    """One run, or whatever Hydra makes of its flags and sweeps."""
    codes: list[int] = []
    parent = os.getpid()

    def plain() -> None:
        # Hydra's own `main` would compose it twice.
        tree = composed_tree(arguments, config_name)
        codes.append(attempt(lambda: tree, arguments, False, run, schema)[0])

    def task(tree: DictConfig) -> None:
        # Inside Hydra's task only; there is no such object in a plain run.
        choices = HydraConfig.get()
        multirun = choices.mode == RunMode.MULTIRUN
        code, error = attempt(lambda: tree, list(choices.overrides.task), multirun, run, schema)
        codes.append(code)
        # A launcher's worker, which reports a failure only by the error.
        if error and os.getpid() != parent:
            raise error

    if asks_help(arguments):
        with ending_with_its_reader():
            return exit_code_of(lambda: print(help_text(arguments, config_name)))
    if is_plain(arguments):
        return exit_code_of(plain) or codes[0]
    # The worst of all runs: a sweep in which one failed has not succeeded.
    return max([in_hydra(task, arguments, config_name), *codes])


def asks_help(arguments: Sequence[str]) -> bool:
    """True for `--help` with overrides and no other flag of Hydra's."""
    flags = {argument for argument in arguments if argument.startswith("-")}
    return bool(flags) and flags <= {"--help", "-h"}


def help_text(arguments: Sequence[str], config_name: str) -> str:
    """A command's help from the template in its config: the groups of conf/ and of one's own folders, and the config.

    Hydra's own takes three times as long, because it asks its repository about every group.
    """
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    own = own_folders(overrides)
    tree = yaml_tree(read_text(file := config_folder() / f"{config_name}.yaml"), file)
    groups = "".join(f"{group}: {', '.join(known_choices(group, own))}\n" for group in known_groups(own))
    config = OmegaConf.to_yaml(composed_tree(overrides, config_name))
    return Template(tree["hydra"]["help"]["template"]).substitute(APP_CONFIG_GROUPS=groups, CONFIG=config)


def is_plain(arguments: list[str]) -> bool:
    """True for one run, of which Hydra only has to compose the config: no flag, no sweep, no `hydra.*`."""
    if any(argument.lstrip("+~").startswith(("-", "hydra")) for argument in arguments):
        return False
    return not any(parsed(argument).is_sweep_override() for argument in arguments)


def attempt(
    composed: Callable[[], DictConfig],
    overrides: list[str],
    multirun: bool,
    run: Callable[[Schema, list[str]], None],
    schema: type[Schema],
) -> tuple[int, Exception | None]:
    """One run: its exit code, and the error that was printed. Outside a multirun, an internal error is raised."""
    try:
        config = compose_run(composed(), schema)
        if multirun and isinstance(config, Config) and config.trainer.devices > 1:
            # Lightning's launcher would start every process with -m again, and each would run the whole sweep.
            raise ConfigError("a multirun needs trainer.devices=1, or ranks that torchrun or srun starts")
        run(config, overrides)
    except Exception as error:
        if isinstance(error, USERS):
            print(f"error: {in_words(error)}", file=sys.stderr)
            return 2, error
        # These load torch, as what raised this has.
        from dapo_lit.engines.protocol import EngineError
        from dapo_lit.ranks import LostRankError

        if isinstance(error, (LostRankError, EngineError)):
            print(f"error: {error}", file=sys.stderr)
            return 1, error
        # An internal error keeps its traceback; in a sweep the other runs go on.
        if not multirun:
            raise
        traceback.print_exc()
        return 1, error
    return 0, None


def in_hydra(task: Callable[[DictConfig], None], arguments: list[str], config_name: str) -> int:
    """Lets Hydra compose and call `task`; returns 2, after one line, for overrides that do not compose."""
    run = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name=config_name)(task)
    with set_up_for_hydra(arguments), ending_with_its_reader() if is_inspection(arguments) else nullcontext():
        return exit_code_of(run)


@contextmanager
def set_up_for_hydra(arguments: list[str]) -> Iterator[None]:
    """Within it, Hydra finds its arguments; a program that called this as a function has its own state again after."""
    root, raises = logging.getLogger(), "HYDRA_FULL_ERROR"
    argv, variable, level, handlers = sys.argv[1:], os.environ.get(raises), root.level, root.handlers[:]
    sys.argv[1:] = arguments  # where Hydra reads them
    # Raise errors: Hydra would print several lines and exit with 1.
    os.environ.setdefault(raises, "1")
    try:
        yield
    finally:
        sys.argv[1:] = argv
        if variable is None:
            os.environ.pop(raises, None)
        # A multirun logs its jobs through the root logger.
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """Lets `--help | head` end the process quietly."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
        sys.stdout.flush()
    finally:
        # Whoever called this as a function lives on, and may write to reward workers that something has killed.
        signal.signal(signal.SIGPIPE, before)


def compose(*overrides: str) -> Config:
    """The checked config that `python -m dapo_lit.train` would run with these overrides, `--config-dir` among them.

    Raises ConfigError: with the command's message.
    """
    arguments = as_hydra_takes(overrides, Config)
    if flag := next((argument for argument in arguments if argument.startswith("-")), None):
        raise ConfigError(
            f"{flag}: a flag of the command, and this is one config; dapo_lit.api.multirun runs several in Python"
        )
    return compose_run(composed_tree(arguments), Config)


def silence_libraries() -> None:
    """Silences what Lightning and transformers print and what does not apply to the commands."""
    from transformers.utils.logging import disable_progress_bar

    # Its advice on loaders and eval mode does not apply here.
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    disable_progress_bar()  # of loading a model
