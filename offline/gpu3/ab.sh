. /root/p/common.sh
for m in SmolLM2-135M Qwen2.5-1.5B; do for t in eq both eq both; do cd /root/$t; PYTHONPATH=/root/$t/src:/root/site0 TRITON_CACHE_DIR=/root/tc-ab-$t timeout 60 python3 /root/p/ab.py $t $m 1024 512 /root/$t 2>&1 | grep -E "^AB|Error"; done; done
