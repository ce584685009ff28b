# wait SECONDS, then say where everything stands
sleep ${1:-1}
date; nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
tail -n 12 $HOME/red.log; tail -n 4 $HOME/pool.log; tail -n 8 $HOME/study.log
for d in $HOME/gsm/out/*/seed-*; do echo $d $(tail -n 1 $d/metrics.jsonl 2>/dev/null | cut -c1-60) ; done
ls -t $HOME/red/rl 2>/dev/null | head -3; for d in $HOME/red/rl/start-*; do wc -l $d/metrics.jsonl; done 2>/dev/null
