#!/usr/bin/env bash
# HA-DW's λ over the values of the paper's table: recipes/sweeps/lambda.sh [CONFIG] [further options of compare]
# λ multiplies every advantage alike, so AdamW divides most of it out; difficulty.sharpness is what weighs one prompt
# against another: SHARPNESS="0 0.5 1 2" recipes/sweeps/lambda.sh sweeps that instead.
set -euo pipefail
CONFIG=${1:-examples/abacus.toml}
KEY=lam
LIST="0.5 0.8 1 1.3 1.5 1.7 2"
if [ -n "${SHARPNESS:-}" ]; then
  KEY=sharpness
  LIST=$SHARPNESS
fi
# The whole choice, not its option alone: CONFIG may have another difficulty, or none.
VALUES=""
for value in $LIST; do
  VALUES+="${VALUES:+,}{name=\"hadw\",$KEY=$value}"
done
exec equipoise compare "$CONFIG" --vary "objective.difficulty=$VALUES" --out "${OUT:-runs/sweep_$KEY}" "${@:2}"
