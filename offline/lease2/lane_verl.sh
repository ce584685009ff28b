. /root/pieces/common.sh
cd /root/eq; date
MEMORY=0.12 OUT=/root/out-verl bash /root/pieces/gpu.sh verl 330 > $L/verl.txt 2>&1; tail -n 30 $L/verl.txt | cut -c1-300; date; echo VERL LANE DONE
