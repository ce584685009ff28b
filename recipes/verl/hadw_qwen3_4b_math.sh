#!/usr/bin/env bash
# HA-DW on MATH with Qwen3-4B: the setting of arXiv 2601.08521. LAM=1.3 is its best λ.
# Table 8: 256 prompts of 8, mini-batches of 16, no filtering (for DAPO neither), 3 epochs of 7,500 prompts, DAPO 9:
# 87 and 261 steps of 256.
# BASE=gspo or BASE=dapo are its other two base objectives; DIFFICULTY=none is the base alone.
set -euo pipefail
BASE=${BASE:-grpo}
DIFFICULTY=${DIFFICULTY:-"{name: hadw, lam: ${LAM:-1.3}}"}
export MODEL=${MODEL:-Qwen/Qwen3-4B-Base} TRAIN=${TRAIN:-data/math.parquet} TEST=${TEST:-data/benchmarks.parquet}
export TOKENS=${TOKENS:-4096} GROUP=8 PROMPTS=256 DYNAMIC=False MINI_BATCH=${MINI_BATCH:-16} LR=1e-6 TP=${TP:-1}
export OBJECTIVE="{preset: $BASE, difficulty: $DIFFICULTY}" RUN=${RUN:-runs/hadw_qwen3_4b_math}
case $BASE in
  grpo) export CLIP_LOW=0.2 CLIP_HIGH=0.2 STEPS=${STEPS:-87}; LOSS=vanilla ;;
  gspo) export CLIP_LOW=3e-4 CLIP_HIGH=4e-4 STEPS=${STEPS:-87}; LOSS=gspo ;;
  dapo) export CLIP_LOW=0.2 CLIP_HIGH=0.28 STEPS=${STEPS:-261}; LOSS=vanilla ;;
  *) echo "BASE = $BASE: the rule is grpo, gspo or dapo" >&2; exit 2 ;;
esac
exec "$(dirname "$0")/launch.sh" actor_rollout_ref.actor.policy_loss.loss_mode=$LOSS trainer.test_freq=5 "$@"
