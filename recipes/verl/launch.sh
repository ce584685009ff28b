#!/usr/bin/env bash
# GRPO-style training in verl 0.9 (FSDP, vLLM, Ray), by default with equipoise's estimator and verifier.
# Everything is an environment variable with a default, or a further override on the command line:
#   MODEL=Qwen/Qwen3-1.7B TRAIN=train.parquet TEST=test.parquet OBJECTIVE='{preset: dapo, aggregation: balanced}' \
#     recipes/verl/launch.sh trainer.logger='[console,wandb]'
# STOCK=1 leaves the lines of EQUIPOISE out: that is the whole difference to a plain verl launch.
# See what verl makes of it, without a GPU: recipes/verl/launch.sh --cfg job
set -euo pipefail

MODEL=${MODEL:?a Hugging Face folder or hub name}
TRAIN=${TRAIN:?a Parquet file in the columns of verl}
TEST=${TEST:?a Parquet file in the columns of verl}
OBJECTIVE=${OBJECTIVE:-'{preset: dapo, aggregation: balanced}'}

NODES=${NODES:-1}              # with more than one, start Ray on all of them first: recipes/verl/ray.sh
GPUS=${GPUS:-8}                # of each node
PROMPTS=${PROMPTS:-128}        # of a step
MINI_BATCH=${MINI_BATCH:-32}   # prompts of an optimizer step
GROUP=${GROUP:-16}             # responses to a prompt
PROMPT_TOKENS=${PROMPT_TOKENS:-1024}
TOKENS=${TOKENS:-8192}         # of a response
STEPS=${STEPS:-500}
LR=${LR:-1e-6}
CLIP_LOW=${CLIP_LOW:-0.2}
CLIP_HIGH=${CLIP_HIGH:-0.28}
DYNAMIC=${DYNAMIC:-True}       # DAPO's dynamic sampling: groups without a difference in reward are drawn anew
TP=${TP:-1}                    # GPUs of one vLLM engine
RUN=${RUN:-runs/verl}

SETTINGS=(
  algorithm.use_kl_in_reward=False
  algorithm.filter_groups.enable="$DYNAMIC"
  algorithm.filter_groups.metric=acc
  data.train_files="$TRAIN"
  data.val_files="$TEST"
  data.train_batch_size="$PROMPTS"
  data.max_prompt_length="$PROMPT_TOKENS"
  data.max_response_length="$TOKENS"
  data.filter_overlong_prompts=True
  data.truncation=error
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.optim.lr="$LR"
  actor_rollout_ref.actor.optim.lr_warmup_steps=10
  actor_rollout_ref.actor.optim.weight_decay=0.1
  actor_rollout_ref.actor.grad_clip=1.0
  actor_rollout_ref.actor.ppo_mini_batch_size="$MINI_BATCH"
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2 * (PROMPT_TOKENS + TOKENS)))
  actor_rollout_ref.actor.clip_ratio_low="$CLIP_LOW"
  actor_rollout_ref.actor.clip_ratio_high="$CLIP_HIGH"
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
  "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n="$GROUP"
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size="$TP"
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$((3 * (PROMPT_TOKENS + TOKENS)))
  actor_rollout_ref.rollout.val_kwargs.n=8
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0
  trainer.nnodes="$NODES"
  trainer.n_gpus_per_node="$GPUS"
  trainer.total_epochs=1000
  trainer.total_training_steps="$STEPS"
  trainer.test_freq=20
  trainer.save_freq=20
  "trainer.logger=[console,tensorboard]"
  trainer.project_name=equipoise
  trainer.experiment_name="$(basename "$RUN")"
  trainer.default_local_dir="$RUN"
  trainer.rollout_data_dir="$RUN/rollouts"
)

EQUIPOISE=(
  algorithm.adv_estimator=equipoise
  "+algorithm.equipoise=$OBJECTIVE"
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum
  trainer.checkpoint_callback_class=equipoise.integrations.verl.plugin.Callback
  reward.custom_reward_function.path=pkg://equipoise.verifiers.host_functions
  reward.custom_reward_function.name=verl_score
)
if [ -n "${STOCK:-}" ]; then
  EQUIPOISE=(algorithm.adv_estimator=grpo actor_rollout_ref.actor.loss_agg_mode=token-mean)
fi

exec "${PYTHON:-python3}" -m verl.trainer.main_ppo "${SETTINGS[@]}" "${EQUIPOISE[@]}" "$@"
