"""How often the interval of an evaluation holds the true accuracy, next to Student's t without pseudo-problems.

Simulated benchmarks: each question has a probability of its own, drawn from a Beta distribution, and so many samples.
The interval is about questions like these, so the truth is the mean of that distribution.

    python benchmarks/interval_coverage.py --out benchmarks/results/coverage.json
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from ablations.compare.statistics import t_interval
from dapo_lit.evaluate import share_interval

CONCENTRATION = 1.0
"""Of the Beta distribution: most questions are always right or always wrong, as in benchmarks of competitions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4000)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--means", type=float, nargs="+", default=[0.05, 0.5])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    generator, rows = np.random.default_rng(settings.seed), []
    for mean in settings.means:
        held = np.zeros(2)
        for _ in range(settings.repeats):
            chances = generator.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean), settings.questions)
            values = generator.binomial(settings.samples, chances) / settings.samples
            for place, found in enumerate((share_interval(values), t_interval(values))):
                held[place] += found.low <= mean <= found.high
        ours, students = (held / settings.repeats).tolist()
        rows.append({"mean": mean, "ours": ours, "student": students})
        print(f"mean {mean}: the interval holds it in {ours:.1%}, Student's t in {students:.1%}")
    command = " ".join(["python", "benchmarks/interval_coverage.py", *sys.argv[1:]])
    shown = {key: value for key, value in vars(settings).items() if key != "out"} | {"concentration": CONCENTRATION}
    text = json.dumps({"command": command, "settings": shown, "rows": rows}, indent=1) + "\n"
    settings.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
