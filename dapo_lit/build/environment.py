"""Puts the environment that a config names around an engine."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from dapo_lit.config import Config, ConfigError
from dapo_lit.config.sections import Reward, Turns
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import RolloutEngine
from dapo_lit.environments.running import Environment, SecondTry, Tool, UserEnvironment
from dapo_lit.environments.tools import SECOND_TRY, TOOLS
from dapo_lit.ranks import Ranks
from dapo_lit.rewards.functions import check_path
from dapo_lit.rewards.verifier import Verifier
from dapo_lit.rollout.episodes import Decode, EpisodeEngine, TurnLimits, encoder


def with_environment(
    engine: RolloutEngine,
    config: Config,
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    decode: Decode,
    workers: int,
    ranks: Ranks,
) -> EpisodeEngine:
    """The engine with `turns.environment` around it, for these problems. ranks: those that may share the engine."""
    turns = config.turns
    return EpisodeEngine(
        engine,
        build_environment(turns, config.reward, problems, workers),
        TurnLimits(turns.max_turns, turns.max_turn_tokens, turns.max_observation_tokens),
        {problem.id: problem for problem in problems},
        encoder(tokenizer, turns.template),
        decode,
        ranks,
    )


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


def build_verifier(reward: Reward, workers: int) -> Verifier:
    settings = reward.model_dump(exclude={"max_error_frac"})
    try:
        return Verifier(**settings | {"wrong_value": float(settings["wrong_value"])}, workers=workers)
    except ValueError as error:
        raise ConfigError(f"reward: {error}") from None
