"""Plays a few short episodes with the environment: one that fails, is late or says something that has no place in an
episode ends a run before the engine has started.
"""

from collections.abc import Callable, Sequence

from dapo_lit.config import ConfigError
from dapo_lit.config.sections import Turns
from dapo_lit.data.problem import Problem
from dapo_lit.engines.protocol import TokenIds
from dapo_lit.environments.running import Answer, Environment
from dapo_lit.preflight.problems import JUNK
from dapo_lit.preflight.table import Finding
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.references import FORMATS
from math_answers.extraction import Extraction

EPISODES, LONGEST = 4, 3
"""Episodes that are played, and most turns of each."""
SHOWN_CHARS = 80
"""Characters of a turn that are shown."""


def try_environment(
    environment: Environment,
    turns: Turns,
    problems: Sequence[Problem],
    extraction: Extraction,
    encode: Callable[[str], TokenIds],
    max_error_frac: float = 1.0,
) -> Finding:
    """Plays an episode with each of a few problems: the policy's turns are junk or the reference answer, and then the
    reference answer. Every first turn is put to the environment twice.

    encode: the tokens that are appended for what the environment says.
    Raises ConfigError if more than `max_error_frac` of the answers are failures, and WorkersLostError if it cannot be
    loaded.
    """
    name = f"turns.environment={turns.environment}"
    chosen = [RewardProblem(p.id, p.problem, p.answer, p.meta) for p in problems[:EPISODES]]
    right = [FORMATS[extraction].format(problem.answer) for problem in chosen]
    firsts = [right[place] if place == 0 else JUNK[(place - 1) % len(JUNK)] for place in range(len(chosen))]
    said: list[list[tuple[str, Answer]]] = [[] for _ in chosen]
    failures: list[str] = []
    answers, differing = 0, 0
    for turn in range(min(LONGEST, turns.max_turns)):
        texts = firsts if turn == 0 else right
        going = [place for place in range(len(chosen)) if len(said[place]) == turn and _goes_on(said[place])]
        asked = {
            (place, copy): (*(text for text, _ in said[place]), texts[place])
            for place in going
            for copy in range(2 if turn == 0 else 1)
        }
        found = _answers(environment, {key: (chosen[key[0]], responses) for key, responses in asked.items()})
        for place in going:
            said[place].append((texts[place], found[place, 0]))
        if turn == 0:
            pairs = [(found[place, 0], found[place, 1]) for place in going]
            differing = sum(a != b for a, b in pairs if a.error is None and b.error is None)
        answers += len(found)
        failures += [answer.error for answer in found.values() if answer.error is not None]
        if len(failures) == answers:
            break
    spoken = [answer.observation for episode in said for _, answer in episode if answer.observation is not None]
    failures += [f"no token of the policy's vocabulary is in {text[:60]!r}" for text in spoken if not len(encode(text))]
    warnings = []
    if failures:
        message = (
            f"{name} gave no answer that the policy could read to {len(failures)} of {answers} turns that were tried "
            f"(junk and reference answers; the first failure: {failures[0]})"
        )
        if len(failures) > max_error_frac * answers or len(failures) == answers:
            raise ConfigError(
                f"{message}. It has to answer every turn that a model may write, within turns.deadline_s="
                f"{turns.deadline_s:g}, with a text, with None where the episode ends, or with a pair of that and the "
                "turn's reward (docs/turns.md#environments)"
            )
        warnings.append(f"{message}; such episodes have no verdict")
    if differing:
        warnings.append(
            f"{name} answers {differing} of {len(chosen)} turns differently when they are repeated; its answers may "
            "depend only on the problem and the policy's turns, or no run could be repeated"
        )
    if (longest := max((len(encode(text)) for text in spoken), default=0)) > turns.max_observation_tokens:
        warnings.append(
            f"{name} answers with {longest:,} tokens at once, and an episode has at most turns.max_observation_tokens="
            f"{turns.max_observation_tokens}: the episode ends there, truncated"
        )
    ended = sum(episode[-1][1].observation is None and episode[-1][1].error is None for episode in said)
    words = f"{turns.environment}: it answered {answers - len(failures)} of {answers} turns of {len(said)} episodes"
    return Finding(f"{words}, and ended {ended} of them", tuple(warnings), _shown(said[0]))


def _goes_on(episode: Sequence[tuple[str, Answer]]) -> bool:
    return not episode or episode[-1][1].observation is not None


def _answers(
    environment: Environment, questions: dict[tuple[int, int], tuple[RewardProblem, tuple[str, ...]]]
) -> dict[tuple[int, int], Answer]:
    """The answers to all questions, each of which comes by its deadline."""
    for ticket, (problem, responses) in questions.items():
        environment.ask(ticket, problem, responses)
    found: dict[tuple[int, int], Answer] = {}
    while len(found) < len(questions):
        found |= {ticket: answer for ticket, answer in environment.answers(0.5) if ticket in questions}
    return found


def _shown(episode: Sequence[tuple[str, Answer]]) -> tuple[str, ...]:
    """The first episode as lines."""
    lines = ["the first episode that was tried:"]
    for text, answer in episode:
        lines.append(f"| policy: {text[:SHOWN_CHARS]!r}")
        said = "ends the episode" if answer.observation is None else repr(answer.observation[:SHOWN_CHARS])
        reward = f", reward {answer.reward:g}" if answer.reward else ""
        lines.append(f"| environment: {answer.error[:SHOWN_CHARS] if answer.error else said}{reward}")
    return tuple(lines)
