# exclusive phase: bash exclusive.sh PART…
. /root/p/common.sh
O=/root/out-x; mkdir -p $O
for part in "$@"; do t=$SECONDS
case $part in
peers) cd /root/both && OUT=$O bash /root/pieces/gpu.sh peers 420 --models SmolLM2-135M Qwen3-0.6B Qwen3-4B --each 36 15 0 --into benchmarks/results/peers_scale.json > $L/x-peers.txt 2>&1; cp $O/peers_scale.json /root/both/benchmarks/results/; grep -a tokens/s $L/x-peers.txt | tail -30 ;;
fp8rows) cd /root/both && OUT=$O bash /root/pieces/gpu.sh peers 170 --models Qwen3-1.7B Qwen3-8B --engines "equipoise fp8 cache" --each 24 10 0 --into benchmarks/results/peers_scale.json > $L/x-fp8rows.txt 2>&1; cp $O/peers_scale.json /root/both/benchmarks/results/; grep -a tokens/s $L/x-fp8rows.txt | tail -30 ;;
vllmfp8) cd /root/both && OUT=$O bash /root/pieces/gpu.sh peers 150 --models Qwen3-1.7B --engines "vllm fp8 cache" --each 30 10 0 --into benchmarks/results/peers_scale.json > $L/x-vllmfp8.txt 2>&1; cp $O/peers_scale.json /root/both/benchmarks/results/; grep -a tokens/s $L/x-vllmfp8.txt | tail; tail -3 $L/x-vllmfp8.txt ;;
fp8) cd /root/both && PYTHONPATH=src:/root/site0 timeout 70 python3 benchmarks/fp8.py attend difference trained speed --models Qwen3-1.7B --lengths 4096 --limit 60 > $L/x-fp8.txt 2>&1; tail -5 $L/x-fp8.txt | cut -c1-900; cp benchmarks/results/fp8.json $O/ ;;
ab) bash /root/p/ab.sh ;;
growth) cd /root/both && PYTHONPATH=src:/root/site0 timeout 60 python3 benchmarks/growth.py > $L/x-growth.txt 2>&1; head -30 $L/x-growth.txt; cp benchmarks/results/growth.* $O/ ;;
drafts) cd /root/both && PYTHONPATH=src:/root/site0 timeout 60 python3 benchmarks/speculation_gpu.py --model /root/q/hf --prompts /root/st/gsm8k-test-400.jsonl --column question --rows 64 256 --drafts 0 2 4 --limit 45 > $L/x-drafts.txt 2>&1; tail -12 $L/x-drafts.txt | cut -c1-400; cp benchmarks/results/speculation_gpu.json $O/ ;;
overlap) cd /root/both && PYTHONPATH=src:/root/site:/root/site0 timeout -k 5 150 python3 benchmarks/overlap.py --model Qwen3-1.7B --prompts 8 --longest 3072 --mean 600 --cv 1.0 --steps 2 --rounds 1 --limit 70 > $L/x-overlap.txt 2>&1; tail -3 $L/x-overlap.txt | cut -c1-600; cp benchmarks/results/overlap.json $O/ ;;
hadw) cd /root/both && PYTHONPATH=src:/root/site:/root/site0 timeout -k 5 122 python3 benchmarks/papers_step.py --settings HA-DW --engines equipoise --share 0.0625 --seconds 112 --each 112 --out $O/hadw > $L/x-hadw.txt 2>&1; tail -2 $L/x-hadw.txt | cut -c1-600 ;;
esac; echo "PART $part $((SECONDS-t)) s"; done
