# On the GPU machine: OUT=FOLDER bash lane_verl.sh [SECONDS [cpu] [overrides of verl]]   -> $OUT/verl-run.tar.xz, verl-summary.txt
bash /root/p/wait80.sh
# EQ: the repository (~/eq). PIECES: where verl_run.sh lies (beside this file). SITE, SITE_VERL: the unpacked loads.
here=$(cd "$(dirname "$0")" && pwd)
limit=${1:-400}; [ $# -gt 0 ] && shift
site=${SITE:-$HOME/site}; site_verl=${SITE_VERL:-$HOME/site-verl}
export OUT=${OUT:-$HOME/out-verl}; L=${L:-$HOME/logs}; mkdir -p "$OUT" "$L"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$HOME/vllm-cache}
cd "${EQ:-$HOME/eq}" || exit 1
# verl 0.9.1 wants transformers < 5.11: its own lie in site-verl-hf, before the machine's.
export PYTHONPATH=$PWD/src:$site_verl-hf:$site_verl:$site
date
timeout -k 10 "$limit" bash "${PIECES:-$here}/verl_run.sh" "$OUT" $((limit - 10)) "$@" > "$L/verl.txt" 2>&1 < /dev/null
echo "verl_run: exit $?"; grep -a "^VERL" "$L/verl.txt" | tail -n 45 | cut -c1-300
ls -l "$OUT"/verl-run.tar.xz; date; echo VERL LANE DONE
