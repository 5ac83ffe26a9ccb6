n=0; while [ $n -lt 3 ]; do n=$((n+1)); if [ $n = 2 ]; then break; fi
python3 $n; done; until (( n > 4 )); do ((n++)); done
python3 $n
