for s in 1 2 "3 4"; do python3 seed=$s; done; for ((i=0;i<3;i++)); do [ $i = 1 ] && continue; python3 $i; done
