A="a=1  b=2
 c=3"; E=; python3 $A "$A" x$A E=${E:-} $E "$E"
