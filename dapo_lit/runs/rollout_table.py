"""Rollouts as Parquet, one row a sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablations.border import ANY, IDS, LOGPROBS, NUMBER, REWARDS, TEXT, TRUTH, VERDICT, WHOLE, checked_table
from ablations.files.layout import ROLLOUTS
from ablations.files.tables import read_table, write_table
from dapo_lit.config import Config
from dapo_lit.engines.protocol import Sample
from dapo_lit.rollout.episodes import Decode, turn_texts
from dapo_lit.rollout.records import CollectedStep


def rollouts_file(run: Path, step: int) -> Path:
    return run / ROLLOUTS / f"step_{step:06d}.parquet"


def keeps_rollouts(config: Config, step: int) -> bool:
    """True if a run with this config writes the rollouts of the step."""
    every = config.logger.rollouts_every
    return bool(every and step % every == 0) or step in config.replay.record


RECORDED = {
    "problem_id": TEXT, "attempt": WHOLE, "sample_index": WHOLE, "submitted_step": WHOLE, "response_ids": IDS,
    "rollout_logprobs": LOGPROBS, "policy_version": WHOLE, "extracted": ANY, "error": ANY, "correct": VERDICT,
    "reward": NUMBER, "examined": TRUTH, "truncated": TRUTH,
}  # fmt: skip
"""The columns that a replay takes, with their kinds."""


def read_recorded(file: Path) -> pd.DataFrame:
    """What a replay takes of the rollouts of a step. Raises DamagedError: one line with the column."""
    found = read_table(file)
    columns = RECORDED | TURNS if "ended_by" in found else RECORDED
    if "turn_rewards" in found:
        columns = columns | {"turn_rewards": REWARDS}
    return checked_table(found, columns, file, key=("submitted_step", "problem_id", "attempt", "sample_index"))


TURNS = {"observation_ids": IDS, "observation_places": IDS, "ended_by": TEXT}
"""Columns of episodes with an environment, in addition. Recordings of earlier versions lack `turn_rewards`."""


def _turns(sample: Sample, decode: Decode) -> dict[str, Any]:
    if not sample.ended_by:
        return {}
    seen = sample.observations
    return {
        "observation_ids": seen.ids.astype(np.int64),
        "observation_places": seen.places.astype(np.int64),
        "ended_by": sample.ended_by,
        "turn_rewards": np.array(sample.turn_rewards, np.float64),
        # The text of the whole does not tell whose is what, and readers of the file may have no tokenizer.
        "turns": list(turn_texts(sample, decode)),
        "observations": [decode(ids.tolist()) for _, ids in seen.by_place],
    }


def write_rollouts(folder: Path, collected: CollectedStep, decode: Decode) -> pd.DataFrame:
    """Writes rollouts/step_000010.parquet and returns it: all finished groups that are not carried over, discarded ones
    included.

    A completion whose verification was late or failed has an `error` and no verdict: `correct` and rewards are null.
    """
    kept = {id(group) for group in collected.accepted}
    examined = {id(group) for group in collected.generated}
    rows = [
        {
            "problem_id": group.problem.id,
            "attempt": group.attempt,
            "sample_index": completion.sample.key.sample_index,
            "submitted_step": group.step,
            "group_index": group.index,
            "prompt": group.problem.problem,
            "answer": group.problem.answer,
            "prompt_ids": group.prompt_ids.astype(np.int64),
            "response": completion.text,
            "response_ids": completion.sample.response_ids.astype(np.int64),
            "rollout_logprobs": completion.sample.rollout_logprobs.astype(np.float64),
            "policy_version": completion.sample.policy_version,
            "extracted": completion.score.answer,
            "error": completion.score.error or ("reached its deadline" if completion.score.timed_out else None),
            "correct": None if completion.score.missing else completion.correct,
            "reward": None if completion.score.missing else completion.reward,
            "length_penalty": completion.length_penalty,
            "reward_shaped": None if completion.score.missing else completion.reward_shaped,
            "advantage": completion.advantage,
            "kept": id(group) in kept,
            "examined": id(group) in examined,
            "truncated": completion.truncated,
            **_turns(completion.sample, decode),
        }
        for group in [*collected.generated, *collected.surplus]
        for completion in sorted([*group.completions, *group.missing], key=lambda c: c.sample.key.sample_index)
    ]
    table = pd.DataFrame(rows)
    write_table(rollouts_file(folder, collected.step), table)
    return table
