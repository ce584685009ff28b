#!/usr/bin/env bash
# HA-DW's anchors: the paper's filter, a window of batches, and fixed thresholds (its Table 2).
# recipes/sweeps/anchors.sh [CONFIG] [further options of compare]
set -euo pipefail
CONFIG=${1:-examples/abacus.toml}
VALUES='{name="hadw"},{name="hadw",anchor="window"}'
for threshold in 0.3 0.5 0.7; do
  VALUES+=",{name=\"hadw\",anchor=\"fixed\",threshold=$threshold}"
done
exec equipoise compare "$CONFIG" --vary "objective.difficulty=$VALUES" --out "${OUT:-runs/sweep_anchors}" "${@:2}"
