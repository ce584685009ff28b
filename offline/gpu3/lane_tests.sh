. /root/p/common.sh
bash /root/p/wait80.sh
one() { # NAME TREE SECONDS ARGS…
  local n=$1 tree=$2 s=$3; shift 3; cd $tree; local t=$SECONDS
  PYTHONPATH=$tree/src:/root/site0 OMP_NUM_THREADS=2 TRITON_CACHE_DIR=/root/tc-$LANE timeout $s python3 -m pytest -q -p no:cacheprovider -o addopts= -m 'not slow and not long' "$@" > $L/test-$n.txt 2>&1
  echo "TEST $n exit $? $((SECONDS-t)) s: $(tail -n 1 $L/test-$n.txt)"; }
B=/root/both
case $LANE in
b) one drafts-first $B 100 tests/rollout/test_drafts.py -k "too_little_memory or trained_model"
   one drafts-rollout $B 240 tests/rollout/test_drafts.py tests/rollout/test_step_buffers.py ;;
c) one eight-bits $B 300 tests/rollout/test_eight_bits.py tests/train/test_mismatch.py ;;
esac
echo LANE $LANE DONE
