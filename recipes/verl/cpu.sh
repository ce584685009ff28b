#!/usr/bin/env bash
# Try a recipe without a GPU: a small model in place of its own, two steps of 4 prompts, short responses.
#   MODEL=small_model TRAIN=train.parquet TEST=test.parquet \
#     recipes/verl/cpu.sh recipes/verl/hadw_qwen3_4b_math.sh
# Further arguments are overrides. GPUS (1) is the number of workers, NODES (1) of Ray nodes. With RAY_ADDRESS it joins
# a cluster, which has been told of as many GPUs as there are workers: ray start --num-gpus=2
set -euo pipefail
RECIPE=${1:?a script of this folder}
shift
export VERL_PLATFORM=cpu OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} GPUS=${GPUS:-1} TP=1
mapfile -t CPU < <("${PYTHON:-python3}" -m equipoise.integrations.verl.on_cpu)
if [ -z "${RAY_ADDRESS:-}" ]; then
  CPU+=(ray_kwargs.ray_init.num_cpus=$((8 + 4 * GPUS)) "+ray_kwargs.ray_init.num_gpus=$GPUS"
        +ray_kwargs.ray_init.include_dashboard=false +ray_kwargs.ray_init.object_store_memory=500000000)
fi

SMALL=(
  data.train_batch_size=4
  data.max_prompt_length=64
  data.max_response_length=64
  actor_rollout_ref.actor.ppo_mini_batch_size=2
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024
  actor_rollout_ref.actor.fsdp_config.model_dtype=fp32
  "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
  actor_rollout_ref.rollout.name=equipoise
  actor_rollout_ref.rollout.dtype=float32
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=1024
  trainer.total_training_steps=2
  trainer.val_before_train=False
  trainer.test_freq=-1
  trainer.save_freq=2
  "trainer.logger=[console,file]"
)
exec "$RECIPE" "${CPU[@]}" "${SMALL[@]}" "$@"
