"""verl on the CPU: a platform for its registry, so that `VERL_PLATFORM=cpu` trains with FSDP over gloo, and the name
of our rollout.

verl 0.9 knows NVIDIA's, AMD's and Huawei's accelerators. Its workers ask the platform for everything that depends on
the device, so a platform that answers for the CPU is all that its FSDP engine needs. Ray counts the workers as GPUs,
the name verl looks for when it checks a cluster; they are slots, and their number is given to Ray.

For tests, for small models and to try a launch before it gets GPUs. Not covered: Megatron, profilers, vLLM on the CPU
(the responses come from :mod:`equipoise.integrations.verl.rollout`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "cpu"
ROLLOUT = "equipoise"


def _nothing(*_: Any, **__: Any) -> int:
    """What a device without memory of its own has to do, and how many bytes of that memory are in use."""
    return 0


class _Stream:
    """The only queue of work there is: what was asked for has been done."""

    def wait_stream(self, other: Any) -> None: ...

    def synchronize(self) -> None: ...


# Beside the names of torch.cpu, the calls of torch.cuda that verl makes.
DEVICE_MODULE = SimpleNamespace(
    is_available=lambda: (
        False
    ),  # as torch.cuda on such a machine: verl then keeps no state of a device's generator
    device_count=lambda: 1,
    get_device_name=lambda *_: "CPU",
    mem_get_info=lambda *_: (1, 1),
    current_stream=_Stream,
    get_rng_state=torch.get_rng_state,  # of checkpoints, which have the CPU's besides
    set_rng_state=torch.set_rng_state,
    set_device=_nothing,
    synchronize=_nothing,
    empty_cache=_nothing,
    ipc_collect=_nothing,
    memory_allocated=_nothing,
    memory_reserved=_nothing,
    max_memory_allocated=_nothing,
    max_memory_reserved=_nothing,
)


@PlatformRegistry.register(platform=NAME)
class Cpu(PlatformBase):
    """Chosen by VERL_PLATFORM=cpu alone: a machine without accelerators is left to verl's own choice."""

    device_name = vendor_name = NAME
    device_module = DEVICE_MODULE

    def __init__(self) -> None:
        # verl has its FSDP engine under the names of its accelerators; the class is the same for all of them.
        os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> Any:
        return torch.device(NAME)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        """gloo; in a worker of verl also its process group.

        verl's workers ask for this name just before they make the group, and make of it the backend
        "cpu:gloo,cpu:gloo", which torch refuses (verl.utils.distributed). A group that is there is kept.
        """
        if "RANK" in os.environ and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo", init_method=os.environ.get("DIST_INIT_METHOD")
            )
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def _replica() -> type[RolloutReplica]:
    """Imported by the launches that name it alone: it brings the sampler and Ray."""
    from equipoise.integrations.verl.rollout import Replica

    return Replica


RolloutReplicaRegistry.register(ROLLOUT, _replica)
_ROLLOUT_REGISTRY[ROLLOUT, "async"] = "equipoise.integrations.verl.rollout.Adapter"
