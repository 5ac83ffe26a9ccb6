"""How two results are compared, and the rows that end up in fidelity.md, which docs/fidelity.md shows."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from batches import LETTERS, Batch, described
from torch import Tensor

TOLERANCE = 1e-6

Result = tuple[Tensor, Tensor | None]
"""A loss (or any values) and its gradient with respect to the log-probs [B, T]; None where there is none."""


@dataclass(frozen=True)
class Row:
    function: str
    setting: str
    peer: str
    batches: str
    loss: float
    gradient: float | None
    differs: str | None
    """The entry of docs/fidelity.md that explains a difference; None where both agree."""


ROWS: list[Row] = []


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest `|ours - theirs| / max(1, |theirs|)`; NaN if one has a value that is not finite and the other has not."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} against {tuple(theirs.shape)}"
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return math.nan
    ours, theirs = ours[ours.isfinite()], theirs[theirs.isfinite()]
    return ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).amax().item() if ours.numel() else 0.0


def compare(
    function: str,
    setting: str,
    peer: str,
    batches: Iterable[Batch],
    ours: Callable[[Batch], Result],
    theirs: Callable[[Batch], Result],
    *,
    differs: str | None = None,
) -> None:
    """Adds a row; asserts agreement to 1e-6, or with `differs` that the documented difference is still there.

    Gradients are multiplied by the number of loss tokens first, so that an ordinary entry has the size of an advantage.
    """
    batches = list(batches)
    losses, gradients = [], []
    for batch in batches:
        (loss, gradient), (peer_loss, peer_gradient) = ours(batch), theirs(batch)
        losses.append(difference(loss, peer_loss))
        if gradient is not None and peer_gradient is not None:
            tokens = max(1, int(batch.loss_tokens.sum()))
            gradients.append(difference(tokens * gradient.double(), tokens * peer_gradient.double()))
    record(function, setting, peer, described(batches), losses, gradients or None, differs=differs)


def record(
    function: str,
    setting: str,
    peer: str,
    batches: str,
    values: list[float],
    gradients: list[float] | None = None,
    *,
    differs: str | None = None,
) -> None:
    """Adds a row of differences already taken, under the same rule."""
    row = Row(function, setting, peer, batches, worst(values), worst(gradients) if gradients else None, differs)
    ROWS.append(row)
    agrees = row.loss <= TOLERANCE and (row.gradient is None or row.gradient <= TOLERANCE)
    if differs is None:
        assert agrees, f"a difference that docs/fidelity.md does not explain: {row}"
    else:
        assert not agrees, f"the difference {differs} of docs/fidelity.md is gone: {row}"


def worst(values: list[float]) -> float:
    return math.nan if any(math.isnan(v) for v in values) else max(values)


def markdown() -> str:
    """The rows as a table, in the order of the peers and then of the tests."""
    lines = [
        "| function | setting | peer's function | batches | loss | gradient | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(ROWS, key=lambda row: (not row.peer.startswith("verl"), row.differs is not None)):
        gradient = "" if row.gradient is None else number(row.gradient)
        mark = f"[{row.differs}](#{row.differs.lower()})" if row.differs else "agrees"
        cells = (f"`{row.function}`", row.setting, row.peer, row.batches, number(row.loss), gradient, mark)
        lines.append(f"| {' | '.join(cells)} |")
    legend = "; ".join(f"{letter}: {name}" for name, letter in LETTERS.items())
    return "\n".join([*lines, "", f"Adversarial batches: {legend}."])


def number(value: float) -> str:
    if math.isnan(value):
        return "not finite"
    return "0" if value == 0 else f"{value:.0e}"


def write(file: Path, heading: str) -> None:
    file.write_text(f"{heading}\n\n{markdown()}\n")
