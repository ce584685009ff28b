bash carry/l2/unpack.sh keep carry/l2
bash /root/pieces/unpack.sh vllm 2>&1 | tail -3
cd /root
for lane in tests vllm verl; do setsid nohup bash /root/pieces/lane_$lane.sh > /root/logs/lane-$lane.txt 2>&1 < /dev/null & done
sleep 2; date
