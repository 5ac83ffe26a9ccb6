"""Which of DAPO's techniques matters, and by how much: RL of language models with every technique a switch.

    from dapo_lit import ablate, report, train                    # the commands, as functions (dapo_lit/api.py)
    from dapo_lit import DAPOModule, RolloutDataModule, compose   # for a Trainer of your own

The names are loaded when they are used: a command that only reads runs needs neither torch nor Lightning.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.trainer import Configs, Remedies, Trainer, hand_over
from dapo_lit import techniques as techniques  # registers them

if TYPE_CHECKING:
    from dapo_lit.cli.command import compose as compose
    from dapo_lit.lit.datamodule import RolloutDataModule as RolloutDataModule
    from dapo_lit.lit.module import DAPOModule as DAPOModule

__path__.append(str(Path(__file__).parent.parent / "dapo_lit_tools" / "commands"))
"""Where Python finds `python -m dapo_lit.plan` too: the commands of the tools, which nothing here imports."""
PLACES = {
    "DAPOModule": "dapo_lit.lit.module",
    "RolloutDataModule": "dapo_lit.lit.datamodule",
    "compose": "dapo_lit.cli.command",
}
MODULES = ("ablate", "api", "report", "train")
"""Loaded where they are asked for, `dapo_lit.train(...)`; three are called as functions (callable_module.py)."""


def _configs() -> Configs:
    from dapo_lit.config.handed_over import CONFIGS

    return CONFIGS


hand_over(
    Trainer(
        ("python", "-m", "dapo_lit.{}"),
        _configs,
        Remedies(
            unequal_bases=": policy.base_from=FOLDER takes the base policies of a packed study, and DAPO_LIT_CACHE "
            "names a cache that machines can share",
            no_rollouts="; logger.rollouts_every=10 keeps those of every tenth step",
            no_tokens="; python -m dapo_lit.replay RUN step=N does",
            seldom_measured=" (`evaluation.every=1`)",
        ),
    )
)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of the installed package; reading its metadata takes milliseconds, so on demand only
        from importlib.metadata import version

        return version("dapo_lit")
    if name in MODULES:
        return import_module(f"dapo_lit.{name}")
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES, *MODULES, "__version__"})
