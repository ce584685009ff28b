bash carry/l2/unpack.sh keep carry/l2
bash /root/pieces/unpack.sh vllm 2>&1 | tail -2

cd /root
OUT=/root/out-verl setsid nohup bash /root/p/lane_verl.sh 430 > /root/logs/lane-verl.txt 2>&1 < /dev/null &
sleep 1; date; cat /root/logs/lane-*.txt | tail -20
