#!/usr/bin/env bash
# Balanced Aggregation on DAPO-17k with Qwen3-1.7B: the BA paper's setting (arXiv 2605.04077).
# AGGREGATION=sequence and AGGREGATION='{name: token, over: group}' are the paper's other two columns.
set -euo pipefail
export MODEL=${MODEL:-Qwen/Qwen3-1.7B} TRAIN=${TRAIN:-data/dapo17k.parquet} TEST=${TEST:-data/benchmarks.parquet}
export TOKENS=8192 GROUP=16 PROMPTS=128 STEPS=500 LR=1e-6 CLIP_LOW=0.2 CLIP_HIGH=0.28 TP=${TP:-1}
export OBJECTIVE="{preset: dapo, aggregation: ${AGGREGATION:-balanced}}" RUN=${RUN:-runs/balanced_qwen3_1.7b_dapo17k}
exec "$(dirname "$0")/launch.sh" "$@"
