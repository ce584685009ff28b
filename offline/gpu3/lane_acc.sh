. /root/p/common.sh
export PYTHONPATH=/root/eq/src:/root/site0 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=; cd /root
mkdir -p acc; cp /root/eq/studies/results/accuracy_again.json acc/results.json
timeout 620 nice -n 10 python3 -m equipoise study run /root/eq/studies/accuracy_again.toml --out acc --jobs 12 --minutes 8.8 > $L/acc.txt 2>&1; tail -3 $L/acc.txt; echo ACC DONE
