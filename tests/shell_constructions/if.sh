A=2; if [ "$A" -gt 3 ]; then B=x; elif [[ $A == 2 && -n "$A" ]]; then B=y; else B=z; fi
if ! [ -z "$A" ] || false; then C=1; fi; [[ $A =~ ^3 ]] || D=4; (( A > 1 )) && E=5; python3 $B $C $E
