#!/bin/bash
# Called by gpu.sh verl, from the root of the repository: verl_run.sh OUT SECONDS [cpu] [overrides of verl …]
# verl 0.9.1's main_ppo from what `equipoise export verl` writes: the embedded model (abacus, a Llama of 2 layers; a
# random one is never right), arithmetic, STEPS (20) steps of 16 × 16 responses, rollout by vLLM in bfloat16.
# `cpu`: the launch that needs no GPU (our rollout, gloo), to tell a broken environment from a broken GPU path.
# Environment: STEPS, DTYPE (bfloat16), EAGER (True: no graphs, a quick start), MEMORY (0.3), PROMPTS (16), GROUP (16),
# ATTENTION (sdpa: flash_attn is not there).
set -u
out=$1; seconds=$2; shift 2
mode=gpu; if [ "${1:-}" = cpu ]; then mode=cpu; shift; fi
python=${PYTHON:-python3}
work=/tmp/verl-run-$mode; rm -rf $work; mkdir -p $work
began=$SECONDS

# verl finds the plug-in by its entry point: metadata without an installation.
version=$("$python" -c 'import equipoise; print(equipoise.__version__)') || { echo "VERL FAILED: equipoise does not import"; exit 1; }
meta=$work/meta/equipoise-$version.dist-info; mkdir -p "$meta"
printf 'Metadata-Version: 2.1\nName: equipoise\nVersion: %s\n' "$version" > "$meta/METADATA"
printf '[verl.plugins]\nequipoise = equipoise.integrations.verl.plugin\n' > "$meta/entry_points.txt"
export PYTHONPATH=$work/meta:$PYTHONPATH

"$python" - <<'P' || { echo "VERL FAILED: imports"; exit 1; }
import importlib, traceback
for name in ("torch", "transformers", "tokenizers", "ray", "tensordict", "hydra", "transfer_queue", "verl", "verl.trainer.main_ppo"):
    try:
        found = importlib.import_module(name)
        print("VERL import", name, getattr(found, "__version__", ""), flush=True)
    except BaseException as error:
        traceback.print_exc(limit=-8)
        print(f"VERL MISSING {getattr(error, 'name', None)}: import {name}: {error!r}", flush=True)
        raise SystemExit(1)
P

device=(); [ $mode = cpu ] && device=(--model.device cpu --model.dtype float32)
[ $mode = gpu ] && device=(--model.dtype "${DTYPE:-bfloat16}" --rollout.engine vllm --rollout.engine_memory "${MEMORY:-0.3}")
steps=${STEPS:-20}
"$python" -m equipoise export verl examples/abacus.toml $work/launch "${device[@]}" --task.max_prompt_tokens 64 \
    --rollout.prompts "${PROMPTS:-16}" --rollout.group_size "${GROUP:-16}" --train.steps "$steps" --train.checkpoint_every "$steps" \
    --eval.every "$steps" --eval.per_level 4 --eval.samples 4 --train.out $work/run > $work/export.txt 2>&1 || { cat $work/export.txt; echo "VERL FAILED: export"; exit 1; }
cp -f $work/launch/launch.sh "$out/verl-launch.sh"
words=()
if [ $mode = gpu ]; then
    words=(
        actor_rollout_ref.model.use_remove_padding=False
        "+actor_rollout_ref.model.override_config.attn_implementation=${ATTENTION:-sdpa}"
        actor_rollout_ref.actor.strategy=fsdp2
        actor_rollout_ref.actor.use_torch_compile=False
        actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
        actor_rollout_ref.rollout.agent.num_workers=4
        "actor_rollout_ref.rollout.enforce_eager=${EAGER:-True}"
        reward.num_workers=1
        data.dataloader_num_workers=0
        transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        ray_kwargs.ray_init.num_cpus=16
        +ray_kwargs.ray_init.num_gpus=1
        +ray_kwargs.ray_init.include_dashboard=false
        +ray_kwargs.ray_init.object_store_memory=2000000000
    )
fi
export RAY_worker_niceness=0 RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0 HYDRA_FULL_ERROR=1 GPUS=1 PYTHON=$python
echo "VERL prepared after $((SECONDS - began)) s; launch follows"
timeout -k 10 $((seconds - (SECONDS - began))) bash $work/launch/launch.sh "${words[@]}" "$@"
code=$?
echo "VERL launch: exit $code after $((SECONDS - began)) s in all"
cp -f "$(ls -t $work/run/verl-*.jsonl 2> /dev/null | head -1)" "$out/verl-metrics.jsonl" 2> /dev/null
for f in /tmp/ray/session_latest/logs/worker-*.err /tmp/ray/session_latest/logs/raylet.err /tmp/ray/session_latest/logs/gcs_server.err; do
    [ -s "$f" ] && { echo "##### $f"; tail -c 6000 "$f"; }
done > "$out/verl-ray.txt" 2> /dev/null
"$python" - "$out/verl-metrics.jsonl" <<'P'
import json, os, sys
if not os.path.exists(sys.argv[1]):
    raise SystemExit("VERL no metrics were written")
for line in open(sys.argv[1]):
    record = json.loads(line)
    d = record["data"]
    wanted = ("critic/score/mean", "critic/rewards/mean", "training/rollout_probs_diff_max", "actor/grad_norm", "bias/mass_balance", "difficulty/anchor",
              "timing_s/step", "timing_s/gen")
    print("VERL step", record["step"], {k: round(d[k], 5) for k in wanted if k in d}, {k: round(v, 3) for k, v in d.items() if k.startswith("val-") and "mean" in k})
P
exit $code
