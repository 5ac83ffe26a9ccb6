#!/usr/bin/env bash
# Runs the cells that are not there yet:  bash experiments/when_to_correct/run.sh
# Then:  python -m dapo_lit.status runs/when_to_correct_joint --pack experiments/when_to_correct/runs
set -euo pipefail
exec "${PYTHON:-python}" -m dapo_lit.train -m +study=when_to_correct +regime=joint study.registered_in=experiments/when_to_correct/runs "$@"
