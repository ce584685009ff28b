. /root/p/common.sh
cd /root/eq; export OMP_NUM_THREADS=2
cp benchmarks/results/example_plans.json /root/plans.json
for e in qwen3_1.7b_math qwen2.5_1.5b_gsm8k; do sed -i 's/^\[train\]$/[train]\nmemory = "45 GiB"/' examples/$e.toml; done
plan() { PYTHONPATH=/root/eq/src:/root/site0 timeout $1 python3 benchmarks/example_plans.py "${@:2}" >> $L/plans.txt 2>&1; tail -2 $L/plans.txt | cut -c1-300; date; }
plan 130 qwen2.5_7b_lora_math --card 74 --out /root/plans-80gb.json --limit 125
touch /root/plans80.done
plan 80 qwen2.5_1.5b_gsm8k --out /root/plans.json --limit 75
plan 170 qwen3_1.7b_math --out /root/plans.json --limit 165
cd /root/both && PYTHONPATH=/root/both/src:/root/site timeout -k 10 200 python3 /root/p/warm.py SmolLM2-135M Qwen3-0.6B Qwen3-4B --jobs 3 --limit 150 > $L/warm.txt 2>&1; grep WARM $L/warm.txt | cut -c1-200; date
echo PLANS DONE
