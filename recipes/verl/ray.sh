#!/usr/bin/env bash
# A Ray cluster for more than one node. The environment (verl, equipoise) and the data must be the same on all of them.
#   on the first node:    recipes/verl/ray.sh head
#   on every other node:  recipes/verl/ray.sh join FIRST_NODE_ADDRESS
#   on the first, then:   NODES=4 recipes/verl/balanced_qwen2.5_math_7b_dapo17k.sh
# Recent Ray asks the nodes for a token: copy ~/.ray/auth_token of the first to the others (or, where the network is
# trusted, RAY_AUTH_MODE=disabled on all). `recipes/verl/ray.sh check` asks every node whether the plug-in is loaded.
set -euo pipefail
PORT=${PORT:-6379}
case ${1:-} in
  head) exec ray start --head --port="$PORT" --num-gpus="${GPUS:-8}" ;;
  join) exec ray start --address="${2:?the address of the first node}:$PORT" --num-gpus="${GPUS:-8}" ;;
  check) exec "${PYTHON:-python3}" - <<'PY'
import ray

ray.init(address="auto")


@ray.remote(num_cpus=0.01)
def plugin() -> bool:
    import verl  # noqa: F401  (what every worker of verl does)
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    return "equipoise" in ADV_ESTIMATOR_REGISTRY


nodes = [node for node in ray.nodes() if node["Alive"]]
asked = [plugin.options(resources={f"node:{node['NodeManagerAddress']}": 0.001}).remote() for node in nodes]
answers = ray.get(asked)
for node, loaded in zip(nodes, answers, strict=True):
    print(node["NodeManagerAddress"], "loaded" if loaded else "MISSING: run `equipoise doctor` there")
raise SystemExit(not all(answers))
PY
    ;;
  *) echo "usage: $0 head | join ADDRESS | check" >&2; exit 2 ;;
esac
