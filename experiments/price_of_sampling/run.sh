#!/usr/bin/env bash
# Runs the cells of a task that are not packed yet:  bash experiments/price_of_sampling/run.sh joint|programs|parity|calculator
# To pack what is finished:  python -m dapo_lit.status runs/price_of_sampling_TASK --pack experiments/price_of_sampling/TASK/runs --bases experiments/bases/price_of_sampling_TASK
set -euo pipefail
task=$1 place=experiments/price_of_sampling/$1/runs
packed=()
if [ -f "$place/cells.parquet" ]; then packed=("study.packed=$place"); fi
exec "${PYTHON:-python}" -m dapo_lit.train -m +study=price_of_sampling "+regime=$task" \
    "study.registered_in=$place" "policy.base_from=experiments/bases/price_of_sampling_$task" "${packed[@]}"
