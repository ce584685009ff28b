#!/usr/bin/env bash
# Responses per prompt, with and without HA-DW: recipes/sweeps/group.sh [CONFIG] [further options of compare]
# The number of prompts stays: a larger group is also a larger batch.
set -euo pipefail
CONFIG=${1:-examples/abacus.toml}
exec equipoise compare "$CONFIG" --vary rollout.group_size=4,8,16,32 --vary objective.difficulty=none,hadw \
  --out "${OUT:-runs/sweep_group}" "${@:2}"
