"""What the page of a fork study says where there is nothing to compare."""

import pytest
from synthetic_runs import write_run

from ablations.designs import Arm
from ablations.read.registration import Family, Plan, Registered, register
from ablations.read.run import StudyError
from ablations.report.fork_page import close_fork
from ablations.techniques import DAPO


def test_a_state_of_which_no_cell_started_is_named_and_so_is_a_run_that_is_gone(tmp_path):
    state = tmp_path / "run" / "step_000003"
    state.mkdir(parents=True)
    with pytest.raises(StudyError, match="step_000003: none of its cells started"):
        close_fork(state)
    weights = {"dapo": 1.0, "dapo-clip_higher": -1.0}
    contrast = Registered("clip_higher", "clip_higher", weights, "rollout/accuracy", "accuracy", steps=(4, 5))
    plan = Plan("fork", "rollout/accuracy", "dapo", tuple(weights), (0,), families=(Family("f", 0.05, (contrast,)),))
    keys = {"fork.run": str(tmp_path / "gone"), "fork.steps": [3], "fork.horizon": 3}
    for arm in (Arm(DAPO), Arm(DAPO - {"clip_higher"})):
        write_run(tmp_path / "run", arm, study=state.name, steps=5, keys=keys)
    register(state, plan)
    with pytest.raises(StudyError, match="gone: the run that was continued is not there any more"):
        close_fork(state)
