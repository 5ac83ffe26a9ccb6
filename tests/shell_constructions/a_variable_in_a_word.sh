D=x; python3 a=b/c-$D/e-${D}_f $D.g
