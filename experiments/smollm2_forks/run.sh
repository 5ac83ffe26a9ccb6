#!/usr/bin/env bash
# SmolLM2-135M: forks of one run and whole-run pairs. First: make model. Then: bash experiments/smollm2_forks/run.sh
set -euo pipefail
python=${PYTHON:-python}
export OMP_NUM_THREADS=1
# 4 kept prompts x 8 completions, 2 updates a step; at this temperature one answer in ten is truncated at first
run=(+experiment=smollm2_arithmetic algorithm.num_prompts=4 algorithm.minibatch_prompts=2 rollout.temperature=1.15
     evaluation.every=0 evaluation.samples=1 evaluation.final_samples=1)
[ -e runs/smollm2_forks/dapo/seed_0/replay/step_000005.ckpt ] ||
  "$python" -m dapo_lit.train "${run[@]}" study_name=smollm2_forks 'replay.record=[2,5]' budget.steps=8
"$python" -m dapo_lit.train -m +study=fork study_name=smollm2_forks_forks fork.run=runs/smollm2_forks/dapo/seed_0 'fork.steps=[2,5]' \
  'study.arms=[dapo-dynamic_sampling,dapo-soft_overlong_punishment]' 'study.seeds=[0,1,2,3,4,5]'
# one technique by whole runs of the same settings, from the first step: six pairs of six steps
"$python" -m dapo_lit.train -m +study=leave_one_out "${run[@]}" study_name=smollm2_forks_pairs 'study.arms=[dapo,dapo-dynamic_sampling]' \
  study.metric=rollout/accuracy 'study.seeds=[1,2,3,4,5,6]' budget.steps=6 study.underpowered=true
