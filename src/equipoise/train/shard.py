"""One model's weights, gradients and moments spread over processes (FSDP2).

Each process keeps its rows of every matrix, in float32; a layer's weights are gathered, in the
precision the model computes in, when a forward or backward pass comes to it, and dropped behind it.
Gradients are summed in float32 and each process receives its rows. The numbers are those of one
process. Gathering hangs on the calls of modules, and our forward pass calls none of them:
`decoder.gathered` takes it through methods that FSDP watches. All processes must make the same
number of passes: `idle_pass` fills up. For sampling and saving, `whole` gathers all weights at
once, in the model's precision: they must fit beside the shards. Not covered: LoRA, and models that
only transformers' forward pass serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from equipoise import policy as models
from equipoise.policy import decoder
from equipoise.train import ranks

T = TypeVar("T")


class _Root(torch.nn.Module):
    """Around the model, so that the weights outside of its layers are gathered for a whole pass."""

    def __init__(self, core: torch.nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, run: Callable[..., T], *arguments: Any) -> T:
        return run(*arguments)


class Shards:
    """`parameters`: this process's rows of every weight, float32, in `policy`'s order."""

    def __init__(self, policy: models.Policy) -> None:
        assert policy.is_llama_like  # found out while the model is whole
        self.policy, self.device, dtype = policy, policy.device, policy.dtype
        self.rounded = dtype != torch.float32
        precision = MixedPrecisionPolicy(
            param_dtype=dtype if self.rounded else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        mesh = init_device_mesh(self.device.type, (ranks.count(),))
        root = _Root(policy.core)
        self.modules = [*policy.core.model.layers, root]
        for module in self.modules:
            for p in module.parameters():  # layer by layer: a float32 model never exists as a whole
                p.data = p.data.float() if p.dtype != torch.float32 else p.data
            fully_shard(module, mesh=mesh, mp_policy=precision)
            module.set_gradient_divide_factor(1.0)
            # a loss is a sum over the shares of all processes
            module.set_force_sum_reduction_for_comms(True)
        self.through = {policy.core: root.__call__}
        for layer in policy.core.model.layers:
            setattr(layer, decoder.THROUGH, _run)
            register_fsdp_forward_method(layer, decoder.THROUGH)
            self.through[layer] = getattr(layer, decoder.THROUGH)
        with torch.no_grad():
            root(tuple)  # FSDP finishes its set-up in the first pass; the rows may move until then
        self._go_through()
        self.weights = list(policy.model.parameters())
        self.parameters = [w.to_local().detach() for w in self.weights]

    def _go_through(self) -> None:
        for module in self.modules:
            module.reshard()
        for module, through in self.through.items():
            setattr(module, decoder.THROUGH, through)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """All weights gathered on every process, and called as if nothing were sharded."""
        for module in self.modules:
            module.unshard()
        for module in self.through:
            setattr(module, decoder.THROUGH, None)
        try:
            yield
        finally:
            self._go_through()

    def idle_pass(self, *, backward: bool) -> None:
        """A pass over one token that counts nothing, for a process that has less to do."""
        one = torch.zeros(1, dtype=torch.long, device=self.device)
        with torch.set_grad_enabled(backward):
            logprobs = models.token_logprobs(
                self.policy, models.pack([[0]], one, one + 1, one)
            ).logprobs
        if backward:
            (0.0 * logprobs.sum()).backward()

    def take_gradients(self) -> None:
        """This process's rows of the summed gradients, to `parameters`."""
        for weight, rows in zip(self.weights, self.parameters, strict=True):
            if weight.grad is not None:
                rows.grad, weight.grad = weight.grad.to_local(), None

    def state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimizer's state as of one process, on the CPU of the first; all take part."""
        masters = self.parameters if self.rounded else []
        gathered: dict[str, Any] = _each({**state, "masters": masters}, _gathered)
        return gathered

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Take this process's rows of what `state_dict` returned on any number of processes,
        masters into the weights; returns the rest.
        """
        mine = _each(state, _rows)
        if self.rounded:
            for rows, master in zip(self.parameters, mine["masters"], strict=True):
                rows.copy_(master)
        return {**mine, "masters": []}


def _run(run: Callable[..., T], *arguments: Any) -> T:
    return run(*arguments)


def _each(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor) and tree.dim():
        return change(tree)
    if isinstance(tree, dict):
        return {k: _each(v, change) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_each(v, change) for v in tree)
    return tree


def _rows(whole: Tensor) -> Tensor:
    """FSDP's own division: equal numbers of rows, less on the last processes."""
    size = -(-len(whole) // ranks.count())
    return whole[ranks.me() * size : (ranks.me() + 1) * size].clone()


def _gathered(rows: Tensor) -> Tensor:
    counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(ranks.count())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    height = max(int(n) for n in counts)
    padded = rows.new_zeros(height, *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    if ranks.me():
        return rows
    return torch.cat([part[: int(n)].cpu() for part, n in zip(parts, counts, strict=True)])
