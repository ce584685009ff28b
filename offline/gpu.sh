#!/bin/bash
# On the GPU machine, from the root of the repository: bash $HOME/pieces/gpu.sh VERB SECONDS [ARGUMENTS]
#   check      check.py [--llm]                                       -> $OUT/check.txt
#   attention  benchmarks/attention.py, FA3 and the rest, then flex   -> $OUT/attention.json, attention.txt
#   peers      benchmarks/peers_scale.py ARGUMENTS                    -> $OUT/peers_scale.json, peers.txt, peers-logs.txt
#   engine     benchmarks/vllm_engine.py ARGUMENTS                    -> $OUT/vllm_engine.json, engine.txt, engine-logs.txt
#   step       benchmarks/papers_step.py ARGUMENTS                    -> $OUT/papers_step.json, step.txt, step-logs.txt
#   verl       20 steps of verl's main_ppo from `equipoise export verl`  -> $OUT/verl.txt, verl-metrics.jsonl, verl-launch.sh
# Every child ends by SECONDS. Output goes to files, the end of it is printed.
set -u
verb=${1:?verb}; seconds=${2:?seconds}; shift 2
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-/tmp/gpu-out}; mkdir -p "$out"
python=${PYTHON:-python3}
site=${SITE:-$HOME/site}
site_verl=${SITE_VERL:-$HOME/site-verl}
scratch=/tmp/gpu-scratch; mkdir -p $scratch
export PYTHONPATH=$PWD/src:$site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-INFO}
export VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$HOME/vllm-cache}
inner=$((seconds > 40 ? seconds - 15 : seconds))

bounded() { # FILE SECONDS COMMAND…: its output to the file, the end of it told
    local file=$1 limit=$2; shift 2
    local start=$SECONDS
    timeout -k 10 "$limit" "$@" > "$file" 2>&1 < /dev/null
    local code=$?
    leftovers 2> /dev/null
    echo "== $(basename "$file"): exit $code after $((SECONDS - start)) s$([ $code = 124 ] || [ $code = 137 ] && echo ' (TIME IS UP)')"
    return $code
}

# What a child leaves behind (an engine's process, Ray's) holds the GPU: everything that was started with this mark ends.
export GPU_RUN_MARK=$$-$(date +%s%N)
leftovers() {
    local p
    for p in /proc/[0-9]*; do
        if tr '\0' '\n' < "$p/environ" 2> /dev/null | grep -qx "GPU_RUN_MARK=$GPU_RUN_MARK"; then kill -9 "${p#/proc/}" 2> /dev/null; fi
    done
}

logs() { # FOLDER FILE: what the children wrote, the end of each
    find "$1" -name log.txt 2> /dev/null | sort | while read -r f; do
        echo "##### $f"; tail -c 60000 "$f"
    done > "$2"
}

case $verb in
check)
    bounded "$out/check.txt" "$seconds" "$python" "$here/check.py" --seconds "$inner" "$@"; code=$?
    grep -a "^CHECK" "$out/check.txt"
    bounded "$out/check-fa3.txt" 90 "$python" "$here/check.py" --seconds 80 --fa3
    grep -a "^CHECK [ofFA]" "$out/check-fa3.txt" | grep -v versions
    [ $code = 0 ] || tail -n 40 "$out/check.txt" ;;
attention)
    # vLLM changes torch's inductor when it is imported (one compile thread): flex runs in a process without it.
    # With $HOME/site-fa3 (FA3 without vLLM) one process does all.
    if [ -f "${SITE_FA3:-$HOME/site-fa3}/flash_attn_interface.py" ]; then
        rm -f benchmarks/results/attention.json
        export PYTHONPATH=$PWD/src:${SITE_FA3:-$HOME/site-fa3}:$site
        bounded "$out/attention.txt" "$seconds" "$python" benchmarks/attention.py --seconds $((seconds > 60 ? seconds - 30 : seconds)) "$@"; code=$?
        cp -f benchmarks/results/attention.json "$out/" 2> /dev/null
        tail -n 40 "$out/attention.txt"
        exit $code
    fi
    half=$((seconds * 55 / 100)); rest=$((seconds - half))
    rm -f benchmarks/results/attention.json
    bounded "$out/attention.txt" $rest "$python" -c '
import sys, runpy
try:
    import vllm.vllm_flash_attn, vllm.platforms
    vllm.platforms.current_platform.get_device_capability()
except Exception as error:
    print("no FA3:", repr(error), flush=True)
sys.path.insert(0, "benchmarks")
sys.argv = ["benchmarks/attention.py", *sys.argv[1:]]
runpy.run_path("benchmarks/attention.py", run_name="__main__")' --seconds $((rest - 20)) --without flex "$@"; code=$?
    cp -f benchmarks/results/attention.json "$scratch/attention-fa3.json" 2> /dev/null
    cp -f "$scratch/attention-fa3.json" "$out/attention.json" 2> /dev/null
    tail -n 30 "$out/attention.txt"
    rm -f benchmarks/results/attention.json
    bounded "$out/attention-flex.txt" $half "$python" benchmarks/attention.py --seconds $((half - 15)) --without varlen,sdpa_padded,sdpa_each,fa3 "$@"
    tail -n 14 "$out/attention-flex.txt"
    "$python" - "$scratch/attention-fa3.json" benchmarks/results/attention.json "$out/attention.json" <<'P'
import json, os, sys
one, two = (json.load(open(p)) if os.path.exists(p) else None for p in sys.argv[1:3])
whole = one or two
if whole is None:
    raise SystemExit("== no attention.json was written")
for case, found in (two or {"results": {}})["results"].items():
    into = whole["results"].setdefault(case, found)
    if "flex" in found:
        into["flex"] = found["flex"]
        into["ours_beside_flex"] = found.get("ours")
json.dump(whole, open(sys.argv[3], "w"), indent=2)
P
    cp -f "$out/attention.json" benchmarks/results/attention.json 2> /dev/null ;;
peers)
    to=$scratch/peers-$$
    bounded "$out/peers.txt" "$seconds" "$python" benchmarks/peers_scale.py --seconds "$inner" --out "$to" "$@"; code=$?
    cp -f "$to/peers_scale.json" "$out/" 2> /dev/null; logs "$to" "$out/peers-logs.txt"
    tail -n 40 "$out/peers.txt" ;;
engine)
    to=$scratch/engine-$$
    bounded "$out/engine.txt" "$seconds" "$python" benchmarks/vllm_engine.py --seconds "$inner" --out "$to" "$@"; code=$?
    cp -f "$to/vllm_engine.json" "$out/" 2> /dev/null; logs "$to" "$out/engine-logs.txt"
    tail -c 5000 "$out/engine.txt" ;;
step)
    to=$scratch/step-$$
    export PYTHONPATH=$PYTHONPATH:$site-trl
    bounded "$out/step.txt" "$seconds" "$python" benchmarks/papers_step.py --seconds "$inner" --out "$to" "$@"; code=$?
    cp -f "$to/papers_step.json" "$out/" 2> /dev/null; logs "$to" "$out/step-logs.txt"
    tail -n 30 "$out/step.txt" ;;
verl)
    # verl 0.9.1 wants transformers < 5.11, with tokenizers <= 0.23.0: VERL_TRANSFORMERS=machine takes the machine's.
    export PYTHONPATH=$PWD/src:$site_verl:$site
    [ "${VERL_TRANSFORMERS:-pack}" = machine ] || export PYTHONPATH=$PWD/src:$site_verl-hf:$site_verl:$site
    bounded "$out/verl.txt" "$seconds" bash "$here/verl_run.sh" "$out" "$inner" "$@"; code=$?
    grep -aE "step:[0-9]+ |Error|error:|VERL" "$out/verl.txt" | cut -c1-400 | tail -n 40 ;;
*) echo "gpu.sh: no verb $verb"; exit 2 ;;
esac
exit ${code:-0}
