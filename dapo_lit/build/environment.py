"""Puts the environment that a config names around an engine."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from transformers import PreTrainedTokenizerBase

from dapo_lit.build.problem_sets import Problems
from dapo_lit.build.verifier import build_verifier
from dapo_lit.config import Config, ConfigError
from dapo_lit.config.sections import ENVIRONMENTS, Reward, Turns
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import EVALUATION_STEP, RolloutEngine
from dapo_lit.environments.running import Environment, SecondTry, Tool, UserEnvironment
from dapo_lit.environments.tools import SECOND_TRY, TOOLS
from dapo_lit.imports import check_path
from dapo_lit.ranks import Ranks
from dapo_lit.rollout.episodes import Decode, EpisodeEngine, TurnLimits, encoder


def with_environment(
    engine: RolloutEngine,
    config: Config,
    problems: Problems,
    tokenizer: PreTrainedTokenizerBase,
    decode: Decode,
    workers: int,
    ranks: Ranks,
    stop_requested: Callable[[], bool],
) -> EpisodeEngine:
    """The engine with `turns.environment` around it.

    decode: without special tokens. workers: processes, where the config does not say. ranks: those that may share the
    engine.
    """
    turns = config.turns
    # Apart, because ids need to differ within a file only.
    train, heldout = ({problem.id: problem for problem in part} for part in (problems.train, problems.heldout))
    everything = [*problems.train, *problems.heldout]
    return EpisodeEngine(
        engine,
        build_environment(turns, config.reward, everything, turns.workers or workers),
        TurnLimits(turns.max_turns, turns.max_turn_tokens, turns.max_observation_tokens),
        lambda key: (heldout if key.step == EVALUATION_STEP else train)[key.problem_id],
        encoder(tokenizer, turns.template),
        decode if turns.environment in ENVIRONMENTS else partial(turn_with_marks, tokenizer),
        ranks,
        stop_requested,
    )


def turn_with_marks(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """A turn as an environment of a user's reads it: with its special tokens, which may mark a call of a tool, but for
    the EOS token that ended it."""
    return str(tokenizer.decode(list(ids[:-1]), skip_special_tokens=False))


def build_environment(turns: Turns, reward: Reward, problems: Sequence[Problem], workers: int) -> Environment:
    name = turns.environment
    assert name is not None
    if name == SECOND_TRY:
        # A verifier of its own: the run's scores whole episodes, and gives each ticket once.
        return SecondTry(build_verifier(reward, workers))
    if name in TOOLS:
        without = [p.id for p in problems if not isinstance(p.meta.get("table"), Mapping)] if name == "lookup" else []
        if without:
            raise ConfigError(
                f"turns.environment=lookup: {len(without)} problems have no column `table` with a mapping, the first "
                f"is {without[0]}"
            )
        return Tool(TOOLS[name])
    try:
        check_path(name)
    except ValueError as error:
        raise ConfigError(f"turns.environment: {error}") from None
    return UserEnvironment(name, turns.deadline_s, workers)
