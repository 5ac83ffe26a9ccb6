"""The prompt in a conversion: what the other trainer sends for a row, and the template here that sends it too.

verl sends the messages in `prompt` through the model's chat template, instructions included. TRL does so with messages,
and sends a text as it is. Here `task.template=chat` is the first and `plain` the second; both leave a data set's own
instruction where it is.
"""

from collections.abc import Mapping
from pathlib import Path

from dapo_lit_tools.conversion.converted import Conversion

TEXT_OR_CHAT = (
    "messages in a row's `prompt` are sent as TRL sends them; for a `prompt` that is a text, which TRL sends without a "
    "chat template, task.template=plain"
)


def fit_prompt(system: str, found: Conversion) -> None:
    """Chooses the template by the first row of the data, or says what decides where there is no file to read."""
    row = first_row(str(found.settings["task.path"]))
    prompt = row.get("prompt") if row else None
    kind = "unknown" if row is None else "messages" if isinstance(prompt, list) else "none"
    kind = "text" if isinstance(prompt, str) else kind
    answer = next((name for name in ("answer", "solution", "ground_truth") if row and name in row), None)
    if system == "trl" and row and kind != "none" and answer and {"problem", "question"} & row.keys():
        # Both trainers have an order of their own for columns: TRL sends `prompt`.
        found.settings["task.columns"] = {"problem": "prompt", "answer": answer}
    if kind == "text" and system == "trl":
        found.settings["task.template"] = "plain"
    elif kind == "text":
        found.notes["task.template"] = (
            "verl wants messages in `prompt`, and these rows have a text, which is sent as a chat"
        )
    elif kind == "none":
        found.notes["task.template"] = (
            "the rows have no `prompt`, so the script makes it: what it writes around the problem belongs into a "
            "template of your own (docs/tasks.md); this command sends the problem as a chat message"
        )
    elif kind == "unknown" and system == "trl":
        found.notes["task.template"] = TEXT_OR_CHAT


def first_row(path: str) -> Mapping[str, object] | None:
    """The first row of a file; None if there is no file to read."""
    from ablations.errors import UserError
    from dapo_lit.data.rows import SUFFIXES, BadRows, read_rows

    file = Path(path).expanduser()
    if file.suffix not in (*SUFFIXES, ".json") or not file.is_file():
        return None
    try:
        row = next(read_rows(file, BadRows()), None)
    except UserError:
        return None  # the training says what is wrong with it
    return None if row is None else row.fields
