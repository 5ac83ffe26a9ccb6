"""A rank's report and its bytes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dapo_lit.engines.protocol import Observations, PartialSample, Sample, SampleKey
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion
from dapo_lit.rollout.report import Report, from_bytes, to_bytes

KEY = SampleKey(3, "p/ü", 1, 2)
EMPTY = Report(stops=True, failure=None, pending=7, waiting=2, preemptions=3, completions=[], withdrawn={})
LOGPROBS = np.array([-1e-8, -0.1, -87.3], np.float32)
COMPLETION = Completion(
    Sample(KEY, [5, 2**31 - 1, 0], LOGPROBS, False, 9, ((7, 1), (8, 1))),
    "x \ud800 \0 é",
    Score(True, 0.1 + 0.2, None, {"a": 1 / 3}),
    reward=math.nextafter(1, 2),
    length_penalty=-0.0,
    reward_shaped=-1e-300,
)
SEEN = Observations([8, 2**31 - 1, 9], [1, 1, 3])
ENDED = PartialSample([5, 0], [-0.5, -0.25], ((2, 2),), turn_ended=True)
WITHDRAWN = PartialSample([5, 2**31 - 1, 0], LOGPROBS, ((7, 1), (8, 1), (9, 1)))


@pytest.mark.parametrize(
    "report",
    [
        EMPTY,
        replace(EMPTY, completions=[replace(COMPLETION, score=Score(False, -1.0, timed_out=True, error="x"))]),
        replace(EMPTY, failure="RuntimeError: out of\nmemory \udcff"),
        replace(EMPTY, completions=[COMPLETION], withdrawn={KEY: PartialSample([], [])}),
        replace(
            EMPTY,
            completions=[replace(COMPLETION, sample=replace(COMPLETION.sample, observations=SEEN, ended_by="turns"))],
            withdrawn={KEY: replace(WITHDRAWN, observations=SEEN)},
        ),
        replace(
            EMPTY,
            withdrawn={KEY: replace(COMPLETION.sample, observations=SEEN, failure="x"), replace(KEY, step=4): ENDED},
        ),
        replace(EMPTY, withdrawn={KEY: PartialSample([1], [-0.5], ((2, 1),)), replace(KEY, step=4): WITHDRAWN}),
    ],
)
def test_no_bit_of_a_report_is_lost_whatever_is_appended_to_its_bytes(report: Report):
    found = from_bytes(to_bytes(report) + b"\0" * 5)
    assert found == report
    assert [bits(c) for c in found.completions] == [bits(c) for c in report.completions]
    for completion in found.completions:  # a view would keep the whole message in memory, and torch warns of it
        assert completion.sample.response_ids.flags.owndata
        assert completion.sample.rollout_logprobs.flags.writeable


def bits(completion: Completion) -> list[Any]:
    numbers = (completion.reward, completion.length_penalty, completion.reward_shaped, completion.score.value)
    return [*(number.hex() for number in numbers), completion.sample.rollout_logprobs.tobytes()]
