#!/usr/bin/env bash
# First, and in git before the first cell:  python experiments/make_bases.py experiments/bases/when_to_correct 252 259 +study=when_to_correct +regime=joint
# Runs the cells that are not there yet:  bash experiments/when_to_correct/run.sh
# Then:  python -m dapo_lit.status runs/when_to_correct_joint --pack experiments/when_to_correct/runs --bases experiments/bases/when_to_correct
set -euo pipefail
exec "${PYTHON:-python}" -m dapo_lit.train -m +study=when_to_correct +regime=joint \
    study.registered_in=experiments/when_to_correct/runs policy.base_from=experiments/bases/when_to_correct "$@"
