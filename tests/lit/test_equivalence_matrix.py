"""The equivalence matrix: {one process, FSDP on one and two, 16-bit copies, checkpointing,
shared prefixes} x {the algorithms, with critic, reference and LoRA} against float64, on the same rollout step.

Every parameter's gradient, the recorded norm and the clipped step of every update, under plain gradient descent: AdamW
would divide a wrong scale out again. `make test` runs the diagonal, DAPO_LIT_MATRIX=1 (`make sweeps`) every cell.
DAPO in one process, with every switch toggled: tests/test_one_file.py.
"""

import os
from pathlib import Path

import pytest
import torch
from command_line import run_cli
from equivalence_case import ALGORITHMS, CLIP, WAYS

WHOLE = bool(os.environ.get("DAPO_LIT_MATRIX"))
DIAGONAL = ["shared prefixes:dapo", "16-bit copies:dapo", "fsdp 2:critic", "fsdp 2:lora", "checkpointing:gspo"]
"""LoRA's has a reference in its loss."""
CHANCE = {"16-bit copies:gspo"}
"""GSPO's bounds of 3e-4 are finer than 16-bit log-probs, so which completions are clipped is chance; with bounds of 0.5
and 0.9 the gradients agree within 4 %."""
MATRIX = [f"{way}:{algorithm}" for way in WAYS if way != "reference" for algorithm in ALGORITHMS]
CELLS = [cell for cell in MATRIX if cell not in CHANCE] if WHOLE else DIAGONAL
TOLERANCE = dict.fromkeys(WAYS, 2e-5) | {"16-bit copies": 0.1}
"""Of a gradient's difference, relative to its norm. 16 bits: of the first update, before weights differ."""


@pytest.fixture(scope="module")
def cells(made_once) -> Path:
    """The folder with every cell's records."""

    def make(out: Path) -> None:
        names = [*CELLS, *{f"reference:{cell.split(':')[1]}": None for cell in CELLS}]
        done = run_cli(str(out), *names, cwd=Path(__file__).parents[1], module="lit.equivalence_case", timeout=3000)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    return made_once("cells", make)


def load(cells: Path, cell: str) -> list[dict]:
    return [torch.load(file, weights_only=False) for file in sorted(cells.glob(f"{cell}.*.pt"))]


def total_norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([g.norm() for g in gradients.values()]).norm())


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_norms_and_clipped_steps_are_those_of_float64(cells, cell):
    way, algorithm = cell.split(":")
    tolerance = TOLERANCE[way]
    (reference,) = load(cells, f"reference:{algorithm}")
    ranks = load(cells, cell)
    assert len(ranks) == WAYS[way][0]
    for rank in ranks:
        updates = rank["updates"][:1] if way == "16-bit copies" else rank["updates"]
        assert len(rank["updates"]) == len(reference["updates"]) == 3
        for update, expected in zip(updates, reference["updates"], strict=False):
            assert update["gradients"].keys() == expected["gradients"].keys()
            assert update["loss"] == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
            scale = total_norm(expected["gradients"])
            for name, gradient in expected["gradients"].items():
                error = float((update["gradients"][name] - gradient).norm())
                assert error <= tolerance * max(float(gradient.norm()), 1e-2 * scale), name


@pytest.mark.parametrize("cell", CELLS)
def test_the_recorded_norm_is_of_all_gradients_and_every_parameter_is_clipped_by_it(cells, cell):
    for rank in load(cells, cell):
        norms = []
        updates = rank["updates"]
        after = [*(update["before"] for update in updates[1:]), rank["after"]]
        for update, then in zip(updates, after, strict=True):
            for part in ("policy.", "critic."):
                gradients = {n: g for n, g in update["gradients"].items() if n.startswith(part)}
                if not gradients:
                    continue
                norm = total_norm(gradients)
                norms += [norm] if part == "policy." else []
                assert part == "critic." or norm > 2 * CLIP  # or the clip would not act
                for name, gradient in gradients.items():
                    step = -0.5 * gradient * min(1.0, CLIP / (norm + 1e-6))
                    rounding = 2e-7 * float(then[name].norm())  # of weights in float32
                    assert (
                        float((then[name] - update["before"][name] - step).norm())
                        <= 1e-4 * float(step.norm()) + rounding
                    )
        assert rank["metrics"]["optim/grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-5)
