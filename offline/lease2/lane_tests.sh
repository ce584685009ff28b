. /root/pieces/common.sh
one() { # NAME TREE SECONDS ARGS…
  local n=$1 tree=$2 s=$3; shift 3; cd $tree; local t=$SECONDS
  PYTHONPATH=$tree/src:/root/site:/root/site0 OMP_NUM_THREADS=2 timeout $s python3 -m pytest -q -p no:cacheprovider -o addopts= -m 'not slow and not long' "$@" > $L/test-$n.txt 2>&1
  echo "TEST $n exit $? $((SECONDS-t)) s: $(tail -n 1 $L/test-$n.txt)"; }
one fp8-kernels /root/fp8 120 tests/kernels/test_fp8.py
one spec-kernels /root/spec 120 tests/kernels/test_drafts.py
one spec-rollout /root/spec 150 tests/rollout/test_drafts.py tests/rollout/test_step_buffers.py
one fp8-rollout /root/fp8 150 tests/rollout/test_eight_bits.py tests/train/test_mismatch.py
one ahead /root/eq 120 tests/train/test_ahead.py
one fp8-old /root/fp8 150 tests/kernels/test_decode.py tests/kernels/test_layers.py tests/rollout/test_paged.py
one spec-old /root/spec 150 tests/kernels/test_decode.py tests/rollout/test_paged.py
echo TESTS DONE
