"""A study that is looked at several times is launched, looked at and ended."""

from pathlib import Path

import pytest
from synthetic_runs import write_run

from ablations.read.runs import load
from dapo_lit.cli.study_launch import find_arm, prepare, study_design
from dapo_lit.config import Config
from dapo_lit.train import run_study


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 8), (0.0, 12)])
def test_a_sequential_study_stops_at_the_look_that_decides_it_or_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: float, seeds: int
) -> None:
    """Cells are written instead of trained: the launch, the looks and the verdicts are the real ones."""
    monkeypatch.chdir(tmp_path)
    asked = (
        "+experiment=ablate_clip_higher", "~regime", "study.metric=eval/chain_sum/avg@4", "study.workers=1",
        "preflight=false",
    )  # fmt: skip
    _, sweep = prepare(["-m", *asked, "study.until=decided", "study.max_pairs=12"])
    assert sweep.plan.stopping == {"until": "decided", "looks": (8, 12)}

    def write(config: Config, overrides: list[str]) -> None:
        arm = find_arm(study_design(config), config.study.arm)
        effects = {"clip_higher": effect}
        write_run(sweep.folder.parent, arm, config.seed, study=sweep.folder.name, steps=6, every=3, effects=effects)

    assert run_study(sweep, write) == 0
    assert load(sweep.folder).seeds == tuple(range(seeds))
