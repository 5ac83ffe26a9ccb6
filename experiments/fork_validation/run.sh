#!/usr/bin/env bash
# Forks of DAPO runs on the base policies of the whole-run effects: bash experiments/fork_validation/run.sh joint
# Whole-run effects: experiments/factorial_joint for joint, else runs/fork_validation_REGIME_whole, which this script makes as well.
set -euo pipefail
regime=$1
out=fork_validation_$regime
python=${PYTHON:-python}
whole=runs/${out}_whole
if [ "$regime" = joint ]; then   # only DAPO is needed, up to its last state
  "$python" -m dapo_lit.train -m +study=leave_one_out +regime=joint study_name=${out}_whole study.arm=dapo 'seed=range(40,52)' \
    'replay.record=[4,8]' budget.steps=11 evaluation.every=0 evaluation.final_samples=2 study.underpowered=true
else
  "$python" -m dapo_lit.train -m +study=leave_one_out "+regime=$regime" study_name=${out}_whole \
    'study.seeds=[40,41,42,43,44,45,46,47,48,49,50,51]' 'replay.record=[4,8]'
fi
for seed in $(seq 40 51); do
  "$python" -m dapo_lit.train -m +study=fork study_name="$out" fork.run="$whole/dapo/seed_$seed" 'fork.steps=[4,8]' 'study.seeds=[0,1,2,3]'
  for step in 4 8; do            # the placebo: own switches, other noise
    "$python" -m dapo_lit.train -m +study=fork study_name="$out" fork.run="$whole/dapo/seed_$seed" "fork.steps=[$step]" study.arm=dapo 'seed=4,5,6,7'
  done
done
