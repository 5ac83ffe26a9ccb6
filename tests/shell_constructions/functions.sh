run() { local x=$1; shift
python3 "$x" "$@" "$#"; if true; then return; fi
python3 no; }
run a "b c" d
run "e f"
