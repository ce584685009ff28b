#!/usr/bin/env bash
# HA-DW's λ over the values of the paper's table: recipes/sweeps/lambda.sh [CONFIG] [further options of compare]
set -euo pipefail
CONFIG=${1:-examples/abacus.toml}
exec equipoise compare "$CONFIG" --vary objective.difficulty.lam=0.5,0.8,1,1.3,1.5,1.7,2 \
  --out "${OUT:-runs/sweep_lambda}" "${@:2}"
