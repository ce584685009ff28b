. /root/p/common.sh
export PYTHONPATH=/root/eq/src:/root/site0 OMP_NUM_THREADS=2
mkdir -p /root/q /root/st; cat /root/pieces/part-* > /root/q/model.gguf; ls -la /root/q/model.gguf
cd /root/q && python3 -c "
import sys; sys.path.insert(0,'/root/p')
from pathlib import Path
import real_model; real_model.convert(Path('/root/q'))" 2>&1 | tail -1
cd /root/st; ln -sfn /root/q/hf qwen; cp /root/p/*.jsonl .; date
bwrap --version || export LD_LIBRARY_PATH=/root/bw; bwrap --version
bash /root/p/wait80.sh
setsid nohup bash /root/p/lane_first.sh > /root/logs/lane-first.txt 2>&1 < /dev/null &
exec bash /root/p/lane_mbpp.sh ${1:-6}
