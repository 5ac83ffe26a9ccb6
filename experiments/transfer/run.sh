# Runs and packs the regimes of this study from the first to the last number given: bash experiments/transfer/run.sh 0 23
set -euo pipefail
for n in $(seq -f %02g "$1" "$2"); do
  seeds=4$n
  # With a second base policy, for the noise of an effect.
  case $n in 0[0-5] | 2[4-9]) seeds=4$n,5$n ;; esac
  python -m dapo_lit.train -m --config-dir experiments/transfer/conf "+drawn=$n" +study=transfer "seed=$seeds"
  python -m dapo_lit.status "runs/transfer_drawn_$n" --pack "experiments/transfer/runs/$n"
done
