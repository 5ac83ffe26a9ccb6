"""Pre-trains the base policies of a study's seeds before its first cell, for git: experiments/bases/NAME.

    python experiments/make_bases.py experiments/bases/whose_penalty_joint 216 239 +study=whose_penalty +regime=joint

A recipe does not decide the weights: on another kind of processor pre-training adds up in another order. With its base
policies in git a cell can be repeated from the same weights, and one that is there already is not made again. A minute
of processor time each, two at a time.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from ablations.files.atomic import write_text
from dapo_lit.build.base_policy import base_spec, find_base, pack_base
from dapo_lit.cli.command import compose
from dapo_lit.runs.code_state import git
from dapo_lit.runs.run_folder import processor

ORIGINS = "origins.json"


def make(folder: Path, seed: int, overrides: list[str]) -> tuple[str, dict[str, object]] | None:
    """Pre-trains one and copies it to `folder`; its name, and what it was made from. None: it is there already."""
    config = compose(*overrides, f"seed={seed}", "study.arm=dapo")
    name = base_spec(config.policy, config.task).folder_name()
    if (folder / name).is_dir():
        return None
    weights = find_base(config.policy, config.task).weights
    if lack := pack_base(config.policy, config.task, weights, folder):
        sys.exit(lack)
    made = {"processor": processor(), "torch": torch.__version__, "commit": git("rev-parse", "HEAD")}
    return name, {"base_seed": config.task.base_seed, "weights": weights, **made}


def main() -> None:
    folder, first, last, *overrides = sys.argv[1:]
    place, seeds = Path(folder), range(int(first), int(last) + 1)
    file = place / ORIGINS
    origins = json.loads(file.read_text()) if file.is_file() else {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for made in pool.map(make, [place] * len(seeds), seeds, [overrides] * len(seeds)):
            if made:
                origins |= [made]
                write_text(file, json.dumps(origins, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
