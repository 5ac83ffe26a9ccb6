X=a; X+=b; N=1; N+=2; python3 $X $N
