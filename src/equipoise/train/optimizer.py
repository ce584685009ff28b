"""AdamW whose arithmetic is float32 whatever the weights are, with moments of 32 or 8 bits.

Weights in bfloat16 have 8 bits of precision: an update of less than a 512th of a weight rounds
away, and updates of RL are smaller. So the optimizer steps a float32 copy of them, the master, and
writes it back rounded; a gradient is added to the master's in float32 as soon as a backward pass
has made it, and its own memory is freed. Weights in float32 (or float64, for references) are their
own masters. With 32 bits the step is torch's fused AdamW; with 8 bits it is `kernels.adamw.coded_step`
(matrices alone: the vectors of a model are a thousandth of it, and keep their 32). Not covered:
float16, moments on another device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.kernels.adamw import Coded, coded_step, rates


class AdamW:
    """`masters`: float32, one for each parameter; their `.grad` is the gradient that `step` takes."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        state: str = "float32",
    ) -> None:
        self.betas, self.weight_decay, self.t = betas, weight_decay, 0
        self.weights = list(parameters)
        self.masters = [p if p.dtype.itemsize >= 4 else p.detach().float() for p in parameters]
        pairs = list(zip(self.weights, self.masters, strict=True))
        self.rounded = [(w, p) for w, p in pairs if w is not p]
        for weight, master in self.rounded:
            weight.register_post_accumulate_grad_hook(_moves_gradient_to(master))
        self.coded = [(w, p, Coded.zeros(p)) for w, p in pairs if _in_8_bits(p, state)]
        self.copied = [(w, p) for w, p in self.rounded if not _in_8_bits(p, state)]
        exact = [p for p in self.masters if not _in_8_bits(p, state)]
        self.exact = (
            torch.optim.AdamW(exact, betas=betas, weight_decay=weight_decay, fused=True)
            if exact
            else None
        )

    def bytes_to_come(self) -> int:
        """What the first step will take for moments that are not there yet."""
        if self.exact is None or self.exact.state:
            return 0
        return sum(2 * 4 * p.numel() for group in self.exact.param_groups for p in group["params"])

    def gradient_bytes(self) -> int:
        """Gradients are the masters', whatever the weights are rounded to."""
        return sum(master.nbytes for master in self.masters)

    def state_bytes(self) -> int:
        """Masters that are not the weights, and moments, those to come included."""
        masters: int = sum(master.nbytes for _, master in self.rounded)
        coded: int = sum(tensor.nbytes for _, _, m in self.coded for tensor in vars(m).values())
        groups = self.exact.param_groups if self.exact is not None else []
        exact: int = sum(2 * p.nbytes for group in groups for p in group["params"])
        return masters + coded + exact

    def zero_grad(self) -> None:
        for tensor in (*self.weights, *self.masters):
            tensor.grad = None

    @torch.no_grad()
    def step(self, lr: float, fine: Tensor | None = None) -> None:
        """Nothing changes but the count `t` where `fine`, a bool on the weights' device, is false."""
        self.t += 1
        skipped = None if fine is None else (~fine).float()
        if self.exact is not None:
            for group in self.exact.param_groups:
                group["lr"] = lr
            self.exact.found_inf = skipped  # type: ignore[attr-defined] # as a GradScaler tells it
            self.exact.step()
        if self.copied:
            weights, masters = zip(*self.copied, strict=True)
            torch._foreach_copy_(weights, masters)
        now = rates(lr, self.betas, self.weight_decay, self.t)
        for weight, master, moments in self.coded:
            if master.grad is not None:
                _fastest(master)(weight, master, master.grad, moments, now, skipped)

    def state_dict(self) -> dict[str, Any]:
        """That of torch's AdamW, with masters that are not the weights, and the 8-bit moments."""
        exact = {"state": {}, "param_groups": []} if self.exact is None else self.exact.state_dict()
        return {
            **exact,
            "t": self.t,
            "masters": [master for _, master in self.rounded],
            "coded": [vars(moments) for _, _, moments in self.coded],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.exact is not None:
            # torch would keep what it is given
            exact = copy.deepcopy({k: state[k] for k in ("state", "param_groups")})
            self.exact.load_state_dict(exact)
        self.t = state.get("t", 0)  # absent in the first runs, as is the rest
        for (weight, master), saved in zip(self.rounded, state.get("masters", []), strict=True):
            weight.copy_(master.copy_(saved))
        for (_, _, moments), saved in zip(self.coded, state.get("coded", []), strict=True):
            for name, tensor in saved.items():
                getattr(moments, name).copy_(tensor)


def _moves_gradient_to(master: Tensor) -> Any:
    def move(weight: Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.float()
        else:
            _add(master.grad, gradient)

    return move


def _add(total: Tensor, gradient: Tensor) -> None:
    """total += gradient. torch's sum of two precisions takes about twice as long as its bytes on
    CUDA, where vectors are too small for it to matter.
    """
    if total.is_cuda and total.dim() > 1 and total.is_contiguous() and gradient.is_contiguous():
        from equipoise.kernels import triton_adamw

        triton_adamw.add(total, gradient)
    else:
        total.add_(gradient)


def _in_8_bits(master: Tensor, state: str) -> bool:
    return state == "8bit" and master.dim() > 1 and master.is_contiguous()


def _fastest(master: Tensor) -> Any:
    if not master.is_cuda:
        return coded_step
    from equipoise.kernels import triton_adamw

    return triton_adamw.coded_step
