. /root/pieces/common.sh
cd /root/eq; export PYTHONPATH=/root/eq/src:/root/site
for m in SmolLM2-135M Qwen3-1.7B Qwen3-8B; do timeout 170 python3 /root/pieces/warm.py $m > $L/warm-$m.txt 2>&1 & done; wait
for m in Qwen3-0.6B Qwen3-4B; do timeout 150 python3 /root/pieces/warm.py $m > $L/warm-$m.txt 2>&1 & done
grep -h ^WARM $L/warm-*.txt; date
OUT=/root/out-engine bash /root/pieces/gpu.sh engine 200 --models SmolLM2-135M Qwen3-1.7B --memory 0.2 > $L/engine.txt 2>&1; tail -c 300 $L/engine.txt; date; wait
export PYTHONPATH=/root/eq/src:/root/site:/root/site0; cp benchmarks/results/example_plans.json /root/example_plans.json
timeout 400 python3 benchmarks/example_plans.py qwen2.5_7b_lora_math qwen3_1.7b_math qwen2.5_1.5b_gsm8k --out /root/example_plans.json --limit 130 > $L/plans.txt 2>&1; date; echo VLLM LANE DONE
