#!/usr/bin/env bash
# Runs the cells of a task that are not packed yet:  bash experiments/price_of_sampling/run.sh joint|programs|parity|calculator
# To pack what is finished:  python -m dapo_lit.status runs/price_of_sampling_TASK --pack experiments/unfinished/price_of_sampling_TASK --bases experiments/bases/price_of_sampling_TASK
# and, once every cell is, into experiments/price_of_sampling/TASK/runs.
set -euo pipefail
task=$1 place=experiments/price_of_sampling/$1/runs
# cells of a study that has not ended, which no page reads
unfinished=experiments/unfinished/price_of_sampling_$task
packed=()
if [ -f "$unfinished/cells.parquet" ]; then packed=("study.packed=$unfinished"); fi
exec "${PYTHON:-python}" -m dapo_lit.train -m +study=price_of_sampling "+regime=$task" \
    "study.registered_in=$place" "policy.base_from=experiments/bases/price_of_sampling_$task" "${packed[@]}"
