"""Accelerate's shards on the CPU: `accelerate launch --use_fsdp --fsdp_version 2 sharded.py SCRIPT ...`.

`AcceleratorState` takes an FSDP plug-in where the processes have GPUs (or another accelerator), and passes it over
where they have CPUs. Here it takes it there too. The rest is as on GPUs: the model is wrapped, gathered, sampled from
and saved by Accelerate's and TRL's own code, over gloo. DeepSpeed runs on CPUs as it is, but compiles an all-reduce
through shared memory at its first use; here it leaves that to gloo.
"""

import os
import runpy
import sys
from typing import Any

from accelerate import state
from accelerate.utils import DistributedType


def allow_cpu() -> None:
    """Make every AcceleratorState of CPU processes sharded, if it was given a plug-in for that."""
    made = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        made(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.AcceleratorState.__init__ = init
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main() -> None:
    allow_cpu()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
