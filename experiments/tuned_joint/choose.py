"""Prints each arm at the learning rate with the highest mean held-out accuracy over the base policies of a pilot.

python experiments/tuned_joint/choose.py runs/tuned_joint
"""

import sys
from pathlib import Path
from statistics import mean

from ablations.read.outcomes import primary_metric, scores
from ablations.read.runs import load

pilot = load(Path(sys.argv[1])).usable
best: dict[str, tuple[float, str]] = {}
for arm, by_seed in scores(pilot, primary_metric(pilot, None)).items():
    assert set(by_seed) == set(pilot.seeds), f"{arm} has not ended on every base policy"
    switches = arm.partition("@")[0]
    best[switches] = max(best.get(switches, (0.0, "")), (mean(by_seed.values()), arm))
for _, arm in best.values():
    print(arm)
