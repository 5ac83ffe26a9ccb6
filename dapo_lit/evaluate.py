"""Evaluates models on benchmarks.

    python -m dapo_lit.evaluate policy=smollm2_135m benchmark=gsm8k_test limit=20 n=4      one model
    python -m dapo_lit.evaluate ckpt=runs/single/dapo/seed_0 benchmark=chain_sum_heldout   a run's newest checkpoint
    python -m dapo_lit.evaluate 'compare=[A,B]' benchmark=aime_2024                        two, question by question
    python -m dapo_lit.evaluate reflection_of=runs/single/dapo/seed_0                      reflection in its rollouts
    python -m dapo_lit.evaluate rules_of=runs/single/dapo/seed_0 'other_rules=[dapo,sympy]'  its rewards by other rules

Prints a table with intervals over questions and writes samples, curves and a figure to a folder. Run again after a
kill, or with more problems or samples, it continues from the samples in the folder. Left out: several GPUs.
"""

import sys

from dapo_lit.cli.command import run_command
from dapo_lit.config.evaluate import EvaluateConfig


def evaluate(config: EvaluateConfig, overrides: list[str]) -> None:
    from dapo_lit.commands.evaluate import evaluate  # loads torch, so only once the command line has been checked

    evaluate(config, overrides)


def main() -> None:
    sys.exit(run_command(evaluate, EvaluateConfig, "evaluate", "ckpt", {"out_dir": "output"}))


if __name__ == "__main__":
    main()
