. /root/p/common.sh
export PYTHONPATH=/root/eq/src:/root/site0 OMP_NUM_THREADS=2 TRITON_CACHE_DIR=/root/first-cache TORCHINDUCTOR_CACHE_DIR=/root/first-ind
cd /root/st; for i in 1 2; do date +%s.%N; timeout 150 python3 -m equipoise train /root/eq/examples/qwen2.5_coder_0.5b_gsm8k.toml --model.name ./qwen --task.name ./gsm8k-train.jsonl --task.held_out '""' --eval.every 0 --train.steps 3 --train.memory '"24 GiB"' --train.out first-$i > $L/first-$i.txt 2>&1; tail -12 $L/first-$i.txt; done; echo FIRST DONE
