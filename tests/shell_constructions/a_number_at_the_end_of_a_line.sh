true -9
python3 a=1
