"""A worker's reply, which is believed no further than its kind, number and shape: the worker has run code of the user's
on a model's text, and may send anything.

The one check of the border that is written out: to import pydantic would double the time in which a supervisor starts.
"""

import json
import math
from typing import Any, Literal

NO_TEXT = type(None)
SCORE: dict[str, tuple[type, ...]] = {
    "correct": (bool,),
    "value": (float,),
    "answer": (str, NO_TEXT),
    "parts": (dict,),
    "timed_out": (bool,),
    "error": (str, NO_TEXT),
}
"""The fields of a Score (score.py) with their types."""


Awaited = int | Literal["verdict", "observation", "fault"] | tuple[Literal["texts"], int]
"""What a task asks for: so many scores, whether two answers are the same, what an environment says, what is wrong with
a folder (none: nothing), or so many texts."""


def read_reply(content: bytes, number: int, awaited: Awaited) -> tuple[str, int, Any, float]:
    """The reply to a task: `done` or `failed`, the task's number, its result, and the seconds that it took.

    The result of a task that failed is the error and its traceback.

    Raises ValueError: it is something else.
    """
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _refused(f"no JSON ({error})") from None
    if not (isinstance(reply, list) and len(reply) == 4 and reply[0] in ("done", "failed") and _finite(reply[3])):
        raise _refused("no `done` and no `failed`")
    kind, answered, result, seconds = reply
    if answered != number:
        raise _refused(f"it is to task {str(answered)[:20]}, not to {number}")
    if kind == "failed":
        if not (isinstance(result, list) and [type(text) for text in result] == [str, str]):
            raise _refused("no error and traceback")
    elif awaited == "verdict":
        if not isinstance(result, bool):
            raise _refused("no verdict")
    elif awaited == "fault":
        if not isinstance(result, (str, NO_TEXT)):
            raise _refused("no fault")
    elif isinstance(awaited, tuple):
        if not (isinstance(result, list) and [type(text) for text in result] == [str] * awaited[1]):
            raise _refused(f"not {awaited[1]} texts")
    elif awaited == "observation":
        if not (isinstance(result, list) and len(result) == 2 and _finite(result[1])):
            raise _refused("no observation with a reward")
        if not (result[0] is None or (isinstance(result[0], str) and result[0])):
            raise _refused("no observation")
    elif not (isinstance(result, list) and len(result) == awaited and all(map(_is_score, result))):
        raise _refused(f"not {awaited} scores")
    return kind, number, result, seconds


def _is_score(fields: object) -> bool:
    if not (isinstance(fields, dict) and fields.keys() == SCORE.keys()):
        return False
    typed = all(isinstance(fields[name], types) for name, types in SCORE.items())
    return typed and all(map(_finite, (fields["value"], *fields["parts"].values())))


def _finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _refused(reason: str) -> ValueError:
    return ValueError(f"the reply of a worker: {reason}")
