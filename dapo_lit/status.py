"""Lists the cells of a study (ablations/commands/status.py), and packs their base policies with them."""

import sys
from functools import partial
from pathlib import Path

from ablations.commands import status
from ablations.read.runs import Runs


def pack_bases(runs: Runs, bases: Path) -> list[str]:
    """Copies every base policy that these runs started from into `bases`; a sentence for each that cannot be."""
    from dapo_lit.build.base_policy import pack_base
    from dapo_lit.config import ConfigError  # torch is below these; status without --pack does without
    from dapo_lit.config.foreign import config_without_code

    lacking = []
    for weights, run in {
        str(run.record["base_weights"]): run for run in runs if run.record.get("base_weights")
    }.items():
        try:
            config = config_without_code(run.config, run.folder)
            lacking.append(pack_base(config.policy, config.task, weights, bases))
        except ConfigError as fault:
            lacking.append(f"the base policy {weights} of {run.name} is not packed: {fault}")
    return [sentence for sentence in lacking if sentence]


main = partial(status.main, pack_bases=pack_bases)

if __name__ == "__main__":
    sys.exit(main())
