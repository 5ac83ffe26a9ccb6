D=${D:-gpu}
case "$D" in cpu|npu) N=1;; g*) N=8;; *) N=0;; esac
python3 $N
