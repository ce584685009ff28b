#!/usr/bin/env bash
# HA-DW on MATH with Qwen3-4B: the setting of arXiv 2601.08521. LAM=1.3 is its best λ.
# BASE=gspo or BASE=dapo are its other two base objectives; DIFFICULTY=none is the base alone.
set -euo pipefail
BASE=${BASE:-grpo}
DIFFICULTY=${DIFFICULTY:-"{name: hadw, lam: ${LAM:-1.3}}"}
export MODEL=${MODEL:-Qwen/Qwen3-4B-Base} TRAIN=${TRAIN:-data/math.parquet} TEST=${TEST:-data/benchmarks.parquet}
export TOKENS=${TOKENS:-4096} GROUP=8 PROMPTS=256 MINI_BATCH=${MINI_BATCH:-64} STEPS=${STEPS:-300} LR=1e-6 TP=${TP:-1}
export OBJECTIVE="{preset: $BASE, difficulty: $DIFFICULTY}" RUN=${RUN:-runs/hadw_qwen3_4b_math}
case $BASE in
  grpo) export CLIP_LOW=0.2 CLIP_HIGH=0.2 DYNAMIC=False; LOSS=vanilla ;;
  gspo) export CLIP_LOW=3e-4 CLIP_HIGH=4e-4 DYNAMIC=False; LOSS=gspo ;;
  dapo) export CLIP_LOW=0.2 CLIP_HIGH=0.28 DYNAMIC=True; LOSS=vanilla ;;
  *) echo "BASE = $BASE: the rule is grpo, gspo or dapo" >&2; exit 2 ;;
esac
exec "$(dirname "$0")/launch.sh" actor_rollout_ref.actor.policy_loss.loss_mode=$LOSS "$@"
