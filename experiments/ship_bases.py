"""Pre-trains the base policies that come with the package, and writes them with a manifest to dapo_lit/base_policies.

    python experiments/ship_bases.py

They are those of `make train`, of the page docs/play/train.html and of the README's second command, so that all start
training at once, from the same weights on every machine. A recipe does not decide the weights: on another kind of
processor pre-training adds up in another order. So one that is shipped already stays as it is, and what no command
starts from is removed. A minute of processor time each.
"""

import os
import shutil
from pathlib import Path

import torch

from ablations.files.manifest import MANIFEST, read_manifest, write_manifest
from dapo_lit.build.base_policy import SHIPPED, base_spec, weights_of
from dapo_lit.cli.command import compose
from dapo_lit.policy.base import prepare_base
from dapo_lit.runs.code_state import git
from dapo_lit.runs.run_folder import processor

COMMANDS = [
    ["+experiment=dapo", "+regime=joint"],
    ["+experiment=dapo", "+regime=browser"],
    *(["+experiment=add_soft_punishment", f"seed={seed}"] for seed in range(7)),
]
"""Command lines of dapo_lit.train whose base policies are shipped."""


def main() -> None:
    cache = Path(os.environ.get("DAPO_LIT_CACHE", "build/base_policies"))
    made = {"processor": processor(), "torch": torch.__version__, "commit": git("rev-parse", "HEAD")}
    shipped, bases = (read_manifest(SHIPPED) or {}).get("bases", {}), {}
    for command in COMMANDS:
        config = compose(*command)
        spec = base_spec(config.policy, config.task)
        name = spec.folder_name()
        if name in bases:  # both commands start from it
            continue
        if name in shipped:
            bases[name] = shipped[name]
            continue
        folder = prepare_base(spec, cache)
        shutil.rmtree(SHIPPED / name, ignore_errors=True)
        shutil.copytree(folder, SHIPPED / name)
        named = {"task": config.task.label, "base_seed": config.task.base_seed, "command": " ".join(command)}
        bases[name] = {"weights": weights_of(folder), **named, **made}
    for name in shipped.keys() - bases.keys():
        shutil.rmtree(SHIPPED / name)
    (SHIPPED / MANIFEST).unlink(missing_ok=True)
    write_manifest(SHIPPED, {"bases": bases})


if __name__ == "__main__":
    main()
