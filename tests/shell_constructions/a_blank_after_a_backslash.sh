python3 a=1 \  # b
python3 c=2 \
  d=3
