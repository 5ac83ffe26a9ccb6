"""The sketch of an update: directions, derivatives, and what they add up to."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ablations.errors import UserError
from dapo_lit_tools.replays.page import PolicyOfStep, _sketch, step_page
from dapo_lit_tools.replays.recorded_step import open_recording, replay
from dapo_lit_tools.replays.sketch import Directions, derivative
from dapo_lit_tools.replays.tables import token_table


def test_directions_by_hand(tmp_path):
    directions = Directions(tmp_path)
    directions.add([torch.tensor([3.0, 4.0, 0.0])])
    assert directions.add([torch.tensor([5.0, 0.0, 0.0])]) == pytest.approx([3, 4])  # 4 across (3, 4) / 5
    found = directions.add([torch.tensor([6.0, 8.0, 0.01])])  # less than a hundredth of its square lies across
    assert found == pytest.approx([10, 0], abs=1e-6)
    assert [d[0].tolist() for d in directions][:2] == [
        pytest.approx([0.6, 0.8, 0.0]), pytest.approx([0.8, -0.6, 0.0], abs=1e-6),
    ]  # fmt: skip
    assert directions.num_along == 2
    assert directions.add([torch.tensor([1.0, 2.0, 3.0])]) == pytest.approx([2.2, -0.4, 3.0], abs=1e-6)


def test_a_derivative_is_that_of_autograd_and_leaves_the_weights_as_they_were():
    w, x = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    before, direction = w.clone(), torch.randn(4, 3, dtype=torch.float64)
    found = derivative([w], [direction], lambda: (x @ w).log_softmax(1)[:, 0])
    _, expected = torch.func.jvp(lambda v: (x @ v).log_softmax(1)[:, 0], (w,), (direction,))
    assert found == pytest.approx(expected, rel=1e-6)
    assert torch.equal(w, before)


def test_the_sketch_adds_up_to_the_recorded_update(recorded_run, tmp_path):
    """Over all tokens, slope times derivative along the update's own direction is its norm."""
    recording = open_recording(recorded_run, 3)
    arm = replay(recording, recording.config, weights_in=tmp_path)
    directions = Directions(tmp_path)
    directions.add(arm.log.summed)
    policy = PolicyOfStep(recording, arm.generated)
    epochs = recording.config.algorithm.epochs
    sketch = np.stack(_sketch(policy, arm, directions)).reshape(-1, epochs, policy.num_tokens)
    table = token_table(arm, lambda ids: "")
    slope = -(table["weight"] * table["advantage"] * table["ratio"]).where(table["clipped"] == "no", 0.0)
    starts, at = {}, 0
    for group in arm.generated:
        for c in group.completions:
            key = c.sample.key
            starts[key.problem_id, key.attempt, key.sample_index] = at
            at += c.num_tokens
    names = zip(table["problem_id"], table["attempt"], table["sample_index"], strict=True)
    places = np.array([starts[name] for name in names]) + table["position"].to_numpy()
    found = (sketch[:, table["epoch"].to_numpy() - 1, places] * slope.to_numpy()).sum(1)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in arm.log.summed))
    assert len(arm.log.losses) == 4
    assert found[0] == pytest.approx(norm, rel=1e-3)
    # Nothing lies across it.
    assert np.abs(found[1:]).max() < 0.02 * norm


def test_a_disk_without_room_for_the_directions_is_named(recorded_run, tmp_path, monkeypatch):
    recording = open_recording(recorded_run, 3)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=re.escape(str(tmp_path.parent))):
        step_page(recording, {}, [], str, tmp_path)
