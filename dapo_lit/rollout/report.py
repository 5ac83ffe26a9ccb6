"""A rank's message to all ranks after a tick, and its bytes."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo_lit.engines.protocol import Logprobs, Observations, PartialSample, Sample, SampleKey, TokenIds, VersionRuns
from dapo_lit.rewards.score import Score
from dapo_lit.rollout.records import Completion

ARRAYS = ("response_ids", "rollout_logprobs")
HEADER_BYTES = struct.Struct("<Q")


@dataclass(frozen=True)
class Report:
    """Everything that a rank has sampled and scored since its last report."""

    stops: bool
    """It was asked to stop."""
    failure: str | None
    """The error of its last tick; None: there was none."""
    pending: int
    """Samples that its engine still has to give."""
    waiting: int
    """Of these: those that take no place of the engine now, because their environment is asked."""
    preemptions: int | None
    """By its engine in this step; None: not known."""
    completions: list[Completion]
    """Scored since the last report."""
    withdrawn: dict[SampleKey, PartialSample | Sample]
    """Given back since the last report: stopped, or ended in a group that did not get whole."""


def to_bytes(report: Report) -> bytes:
    """The length of a JSON header (8 bytes), the header, and all samples' token ids (int32) and log-probs (float32).

    JSON gives every float back bit for bit, and every string, lone surrogates included.
    """
    samples: list[Sample | PartialSample] = [completion.sample for completion in report.completions]
    samples += report.withdrawn.values()
    header = vars(report) | {
        "completions": [_completion_fields(completion) for completion in report.completions],
        "withdrawn": [[vars(key), _fields(sample)] for key, sample in report.withdrawn.items()],
        "lengths": [len(sample.response_ids) for sample in samples],
    }
    # Not pickle: a report comes from another process, and unpickling runs what it names.
    encoded = json.dumps(header).encode()
    arrays = [sample.response_ids for sample in samples] + [sample.rollout_logprobs for sample in samples]
    return b"".join([HEADER_BYTES.pack(len(encoded)), encoded, *(array.tobytes() for array in arrays)])


def from_bytes(message: bytes) -> Report:
    """The report that `to_bytes` was given; bytes after its end are ignored."""
    (length,) = HEADER_BYTES.unpack_from(message)
    start = HEADER_BYTES.size + length
    header = json.loads(message[HEADER_BYTES.size : start])
    # Arrays lie behind the header: as JSON, numbers would take several times the bytes, and time to parse.
    arrays = _arrays(message, start, header.pop("lengths"))
    completions = [_completion(fields, *next(arrays)) for fields in header.pop("completions")]
    withdrawn = {
        SampleKey(**key): (_sample if "key" in fields else _partial)(fields, *next(arrays))
        for key, fields in header.pop("withdrawn")
    }
    return Report(completions=completions, withdrawn=withdrawn, **header)


def _arrays(message: bytes, start: int, lengths: list[int]) -> Iterator[tuple[TokenIds, Logprobs]]:
    """Token ids and log-probs of each sample, as copies that do not keep the message alive."""
    tokens = sum(lengths)
    ids = np.frombuffer(message, np.int32, tokens, start)
    logprobs = np.frombuffer(message, np.float32, tokens, start + ids.nbytes)
    end = 0
    for length in lengths:
        begin, end = end, end + length
        yield ids[begin:end].copy(), logprobs[begin:end].copy()


def _completion_fields(completion: Completion) -> dict[str, Any]:
    score = completion.score
    return vars(completion) | {
        "sample": _fields(completion.sample),
        "score": vars(score) | {"parts": dict(score.parts)},
    }


def _completion(fields: dict[str, Any], ids: TokenIds, logprobs: Logprobs) -> Completion:
    sample = _sample(fields["sample"], ids, logprobs)
    return Completion(**fields | {"sample": sample, "score": Score(**fields["score"])})


def _fields(sample: Sample | PartialSample) -> dict[str, Any]:
    fields = {name: value for name, value in vars(sample).items() if name not in ARRAYS}
    # As numbers in the header: few samples have any, and they are short next to what was sampled.
    fields["observations"] = [sample.observations.ids.tolist(), sample.observations.places.tolist()]
    return fields | ({"key": vars(sample.key)} if isinstance(sample, Sample) else {})


# Rebuilt by constructors, so that a field that is added later fails here and not in a metric.
def _sample(fields: dict[str, Any], ids: TokenIds, logprobs: Logprobs) -> Sample:
    made = {
        "key": SampleKey(**fields["key"]),
        "earlier_versions": _runs(fields["earlier_versions"]),
        "observations": Observations(*fields["observations"]),
        "turn_rewards": tuple(fields["turn_rewards"]),
    }
    return Sample(response_ids=ids, rollout_logprobs=logprobs, **fields | made)


def _partial(fields: dict[str, Any], ids: TokenIds, logprobs: Logprobs) -> PartialSample:
    made = {
        "versions": _runs(fields["versions"]),
        "observations": Observations(*fields["observations"]),
        "turn_rewards": tuple(fields["turn_rewards"]),
    }
    return PartialSample(response_ids=ids, rollout_logprobs=logprobs, **fields | made)


def _runs(pairs: list[list[int]]) -> VersionRuns:
    return tuple((version, count) for version, count in pairs)
