declare -A M; M[a]=1; M[b]="2 3"; k=b; python3 "${M[$k]}" ${M[a]}
