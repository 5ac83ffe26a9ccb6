python3 a=1 b#2 # c=3
python3 d=4 \
  # e=5 \
