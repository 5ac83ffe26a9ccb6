X=1; (X=2; python3 $X); { python3 $X; } 2>&1 | cat; python3 a > /dev/null 2>&1 &
wait
