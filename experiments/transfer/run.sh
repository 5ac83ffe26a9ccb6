# Runs and packs the regimes of this study from the first to the last number given: bash experiments/transfer/run.sh 0 23
# A failed run stops nothing: its regime is named at the end, and again by law.py, which leaves it out where it is needed.
set -uo pipefail
trap 'exit 130' INT
# The second half is what laws are scored on: they are in a commit before it starts.
laws=experiments/transfer/laws.json
if [ "$2" -ge 24 ] && ! { git ls-files --error-unmatch "$laws" && git diff --quiet HEAD -- "$laws"; } >/dev/null 2>&1; then
  echo "refused: commit $laws (law.py freeze) before regimes 24 to 47 run" >&2
  exit 2
fi
unfinished=()
for n in $(seq -f %02g "$1" "$2"); do
  python -m dapo_lit.train -m --config-dir experiments/transfer/conf "+drawn=$n" +study=transfer "seed=4$n,5$n,6$n" \
    "study.registered_in=experiments/transfer/runs/$n"
  # Base policies stay outside the repository: 144 of them, which README.md gives the reason for.
  python -m dapo_lit.status "runs/transfer_drawn_$n" --pack "experiments/transfer/runs/$n" --bases runs/transfer_bases ||
    unfinished+=("$n")
done
if [ "${#unfinished[@]}" -gt 0 ]; then
  echo "not every run is done in regimes ${unfinished[*]}; the same command goes on with them" >&2
  exit 3
fi
