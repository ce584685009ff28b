. /root/pieces/common.sh
export PYTHONPATH=/root/eq/src:/root/site:/root/site0 OMP_NUM_THREADS=2
mkdir -p /root/q /root/st; cat /root/pieces/part-* > /root/q/model.gguf; ls -la /root/q/model.gguf
cd /root/q && python3 -c "
import sys; sys.path.insert(0,'/root/pieces')
from pathlib import Path
import real_model; real_model.convert(Path('/root/q'))" 2>&1 | tail -1
cd /root/st; ln -sfn /root/q/hf qwen; cp /root/pieces/*.jsonl .; date
bwrap --version || export LD_LIBRARY_PATH=/root/bw; bwrap --version; timeout 60 python3 -m equipoise doctor 2>&1 | tail -20
timeout 560 python3 -m equipoise study run /root/eq/studies/mbpp.toml --out out --jobs 1 --minutes ${1:-6} > $L/mbpp.txt 2>&1; tail -5 $L/mbpp.txt; date
echo QWEN LANE DONE
