P=/a/b.tar.gz
python3 ${P##*/} ${P%.*} ${P%%.*} ${P#/} ${P/a/x} ${P//a/x} ${#P} ${P:1:3} ${P: -2} ${P^^}
