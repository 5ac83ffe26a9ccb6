"""Our interquartile mean and probability of improvement against rliable's (google-research/rliable).

rliable 1.2.0 needs pandas < 3 and so an environment of its own: DAPO_LIT_RLIABLE_PYTHON names its interpreter.

    python -m venv .rliable && .rliable/bin/pip install rliable==1.2.0 'pandas<3'
    DAPO_LIT_RLIABLE_PYTHON=.rliable/bin/python pytest tests/study/test_against_rliable.py
"""

import json
import os
import subprocess

import numpy as np
import pytest

from dapo_lit.study.compare.statistics import iqm, probability_of_improvement

THEIRS = """
import json, sys
import numpy as np
from rliable import metrics
x, y = (np.array(v) for v in json.load(sys.stdin))
print(json.dumps([metrics.aggregate_iqm(x), float(metrics.probability_of_improvement(x, y))]))
"""


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_iqm_and_probability_of_improvement_are_those_of_rliable(seeds: int) -> None:
    python = os.environ.get("DAPO_LIT_RLIABLE_PYTHON")
    if not python:
        pytest.skip("DAPO_LIT_RLIABLE_PYTHON does not name a Python with rliable 1.2.0 and pandas < 3")
    rng = np.random.default_rng(seeds)
    x, y = rng.normal(0.1, 1, (seeds, 1)).round(1), rng.normal(0, 1, (seeds, 1)).round(1)
    given = json.dumps([x.tolist(), y.tolist()])
    done = subprocess.run([python, "-c", THEIRS], input=given, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(
        [iqm(x), probability_of_improvement(x[:, 0], y[:, 0])]
    )
