. /root/p/common.sh
export PYTHONPATH=/root/eq/src:/root/site0 OMP_NUM_THREADS=2; cd /root/st
bwrap --version || export LD_LIBRARY_PATH=/root/bw
timeout 900 python3 -m equipoise study run /root/eq/studies/mbpp.toml --out out --jobs ${JOBS:-3} --minutes $1 > $L/mbpp-$(date +%s).txt 2>&1; date; echo MBPP DONE
