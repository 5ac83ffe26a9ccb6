#!/usr/bin/env bash
# Forks of DAPO runs on the base policies of the whole-run effects: bash experiments/fork_validation/run.sh joint
# Eight base policies; states before a quarter and before half of the steps; each technique that the regime was built for.
# Whole-run effects: experiments/factorial_joint for joint, else runs/fork_validation_REGIME_whole, which this script makes as well.
set -euo pipefail
regime=$1
out=fork_validation_$regime
python=${PYTHON:-python}
whole=runs/${out}_whole
case $regime in
  joint) states='4 8' arms= ;;    # each technique toggled
  sparse) states='4 8' arms=dapo-dynamic_sampling ;;
  rambling) states='2 4' arms=dapo-token_level_loss ;;
  tight_limit) states='3 5' arms=dapo-soft_overlong_punishment,dapo+overlong_filtering ;;
esac
if [ "$regime" = joint ]; then   # only DAPO is needed, up to its last state
  "$python" -m dapo_lit.train -m +study=leave_one_out +regime=joint study_name=${out}_whole study.arm=dapo 'seed=range(40,48)' \
    policy.base_from=experiments/bases/factorial_joint \
    'replay.record=[4,8]' budget.steps=11 evaluation.every=0 evaluation.final_samples=2 study.underpowered=true
else
  "$python" -m dapo_lit.train -m +study=leave_one_out "+regime=$regime" study_name=${out}_whole "study.arms=[dapo,$arms]" \
    'study.seeds=[40,41,42,43,44,45,46,47]' "replay.record=[${states/ /,}]" evaluation.every=0 evaluation.final_samples=2 study.underpowered=true
fi
for seed in $(seq 40 47); do
  "$python" -m dapo_lit.train -m +study=fork study_name="$out" fork.run="$whole/dapo/seed_$seed" "fork.steps=[${states/ /,}]" \
    ${arms:+"study.arms=[$arms]"} 'study.seeds=[0,1,2,3]'
  for step in $states; do        # the placebo: own switches, other noise
    "$python" -m dapo_lit.train -m +study=fork study_name="$out" fork.run="$whole/dapo/seed_$seed" "fork.steps=[$step]" \
      ${arms:+"study.arms=[$arms]"} study.arm=dapo 'seed=4,5,6,7'
  done
done
