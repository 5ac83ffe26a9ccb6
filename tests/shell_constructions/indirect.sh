N=V; V=7
python3 ${!N}; eval "W=8"
python3 $W; bash -c "python3 inner"; exec python3 last
python3 never
