export A=1 B="2 3"; readonly C=4; declare -i D=5; A=9 python3 $A "$B" $C $D; unset A
python3 "${A:-gone}"
