set -e
bash carry/l3/unpack.sh keep carry/l3
tar xJf carry/pk.tar.xz -C /root/pieces; mv /root/pieces/fp8 /root/pieces/spec /root/pieces/site0 /root/pieces/bw /root/
mkdir -p /root/eq /root/logs; tar cf - --exclude=./carry --exclude=./.git . | tar xf - -C /root/eq
bash /root/pieces/unpack.sh verl 2>&1 | tail -3
nproc; nvidia-smi --query-gpu=memory.used --format=csv,noheader; unshare -Ur true && echo userns
