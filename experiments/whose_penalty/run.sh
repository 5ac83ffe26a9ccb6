#!/usr/bin/env bash
# Runs the cells of a task that are not packed yet:  bash experiments/whose_penalty/run.sh joint|calculator
# To pack what is finished:  python -m dapo_lit.status runs/whose_penalty_TASK --pack experiments/unfinished/whose_penalty_TASK --bases experiments/bases/whose_penalty_TASK
# and, once every cell is, into experiments/whose_penalty/TASK/runs.
set -euo pipefail
task=$1 place=experiments/whose_penalty/$1/runs
case $task in joint) marks=40000,80000 ;; calculator) marks=20000,40000 ;; esac
# cells of a study that has not ended, which no page reads
unfinished=experiments/unfinished/whose_penalty_$task
packed=()
if [ -f "$unfinished/cells.parquet" ]; then packed=("study.packed=$unfinished"); fi
exec "${PYTHON:-python}" -m dapo_lit.train -m +study=whose_penalty "+regime=$task" "evaluation.at_tokens=[$marks]" \
    "study.registered_in=$place" "policy.base_from=experiments/bases/whose_penalty_$task" "${packed[@]}"
