"""Writes tests/pages/browser_steps.json: the first steps of the runs that docs/play/train.html repeats, by the package.

    python docs/play/train/reference.py

Two runs of `+regime=browser seed=0`, the page's A and B at its start: DAPO with and without dynamic sampling.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ablations.read.runs import load
from dapo_lit.cli.command import compose
from dapo_lit.train import train

ROOT = Path(__file__).parents[3]
STEPS = 3
ARMS = {"dapo": (), "dapo-dynamic_sampling": ("algorithm.techniques.dynamic_sampling=false",)}
SHORT = (f"budget.steps={STEPS}", "evaluation.samples=1", "preflight=false", "logger.rollouts_every=1")
METRICS = ("loss/policy", "optim/grad_norm", "policy/entropy", "rollout/accuracy")


def steps(folder: Path, *overrides: str) -> list[dict[str, object]]:
    """Metrics of each step, and [prompt, response tokens, kept] of each completion that it examined, in their order."""
    train(compose("+experiment=dapo", "+regime=browser", "seed=0", *SHORT, *overrides, f"runs_dir={folder}"), [])
    runs = load(folder)
    metrics, completions = runs.frame().set_index("step"), runs.frame("rollouts")
    made = []
    for step in range(1, STEPS + 1):
        # Not examined are groups that the package requested in case more of the others were dropped; a page requests as
        # many as are missing.
        rows = completions[(completions["step"] == step) & completions["examined"]]
        sampled = [[row.prompt, row.response_ids.tolist(), bool(row.kept)] for row in rows.itertuples()]
        made.append({**{key: float(metrics.loc[step, key]) for key in METRICS}, "sampled": sampled})
    return made


def main() -> None:
    with TemporaryDirectory() as folder:
        made = {arm: steps(Path(folder) / arm, *overrides) for arm, overrides in ARMS.items()}
    (ROOT / "tests/pages/browser_steps.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
