cat <<EOF > /dev/null
python3 no=1
EOF
python3 yes=1 <<< 'in'
