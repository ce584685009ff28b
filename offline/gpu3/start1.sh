set -e
PIECES=/root/pieces bash carry/l3/unpack.sh keep carry/l3
mkdir -p /root/p /root/eq /root/logs; tar xJf carry/pk.tar.xz -C /root/p; mv /root/p/both /root/p/site0 /root/p/bw /root/
tar cf - --exclude=./carry --exclude=./.git . | tar xf - -C /root/eq
cd /root
go() { LANE=$LANE setsid nohup bash /root/p/lane_$1.sh > /root/logs/lane-$1$LANE.txt 2>&1 < /dev/null & }
go acc; go plans; LANE=b go tests; LANE=c go tests
bash /root/pieces/unpack.sh verl 2>&1 | tail -2
