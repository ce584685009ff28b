"""What a launch of verl says besides when `model.device = "cpu"`: settings of verl, and lines of its launch.sh.

The platform is :mod:`equipoise.integrations.verl.cpu`, the rollout :mod:`equipoise.integrations.verl.rollout`. This
module imports neither: launches are written where verl need not be installed.
"""

from __future__ import annotations

from typing import Any

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))

SETTINGS: dict[str, Any] = {
    "trainer.device": "cpu",
    "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM": "cpu",  # of workers, on whatever cluster
    f"{ACTOR}.strategy": "fsdp2",
    # Responses without padding need FlashAttention, and torch.compile would cost more than such a model.
    f"{MODEL}.use_remove_padding": False,
    f"+{MODEL}.override_config.attn_implementation": "eager",
    f"{ACTOR}.use_torch_compile": False,
    f"{ACTOR}.fsdp_config.use_torch_compile": False,
    # Each of these is a number of processes that import verl, of 0.5 GB each; verl's defaults are eight of every kind.
    f"{ROLLOUT}.agent.num_workers": 1,
    "reward.num_workers": 1,
    "data.dataloader_num_workers": 0,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}

# A cluster that runs already knows what it has. One of our own must be given it: Ray counts verl's
# workers as GPUs, and gives each three CPUs, which are slots as well.
PREPARED = """
export VERL_PLATFORM=cpu OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
RAY=()
if [ -z "${RAY_ADDRESS:-}" ]; then
    RAY=(ray_kwargs.ray_init.num_cpus=$((8 + 4 * ${GPUS:-1})) "+ray_kwargs.ray_init.num_gpus=${GPUS:-1}"
         +ray_kwargs.ray_init.include_dashboard=false +ray_kwargs.ray_init.object_store_memory=500000000)
fi
"""
WORDS = '"${RAY[@]}" '

if __name__ == "__main__":  # for recipes/verl/cpu.sh: one override a line
    print("\n".join(f"{name}={value}" for name, value in SETTINGS.items()))
