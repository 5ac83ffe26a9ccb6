"""Exports a checkpoint as a Hugging Face folder:

    python -m dapo_lit.export runs/single/dapo/seed_0 output=exported/dapo

The folder has a model card with the results, the run's curves and its config. push=owner/name uploads it to the
Hugging Face hub (`hf auth login` first).

transformers and vLLM load the folder as it is. Its generation config names every token that ends a response, because
responses run on to their limit if one is missing.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.export import ExportConfig


def export(config: ExportConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.export import export  # loads torch, so only once the command line has been checked

    export(config, overrides)


def main() -> None:
    sys.exit(run_command(export, ExportConfig, "export", "ckpt", {"out": "output"}))


if __name__ == "__main__":
    main()
