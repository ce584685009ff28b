"""AdamW whose arithmetic is float32 whatever the weights are, with moments of 32 or 8 bits.

Weights in bfloat16 have 8 bits of precision: an update of less than a 512th of a weight rounds
away, and updates of RL are smaller. So the optimizer steps a float32 copy of them, the master, and
writes it back rounded; a gradient is added to the master's in float32 as soon as a backward pass
has made it, and its own memory is freed. Weights in float32 (or float64, for references) are their
own masters. With 32 bits the step is torch's fused AdamW, on CUDA one pass over memory
(`kernels.triton_adamw.exact_step`); with 8 bits it is `kernels.adamw.coded_step` (matrices alone:
the vectors of a model are a thousandth of it, and keep their 32). Not covered: float16, moments on
another device.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.kernels.adamw import Coded, WithMoments, coded_step, rates


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
        self.not_coded = [(w, p) for w, p in pairs if not _in_8_bits(p, state)]
        exact = [p for _, p in self.not_coded]
        self.exact = (
            torch.optim.AdamW(exact, betas=betas, weight_decay=weight_decay, fused=True)
            if exact
            else None
        )
        self.in_one_pass = all(_in_one_pass(weight, p) for weight, p in self.not_coded)
        self.counts: dict[Tensor, int] = {}  # steps of each parameter, in one pass
        self.counted: list[Tensor] = []  # the last one's parameters

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
    def step(self, lr: float, fine: Tensor | None = None, scale: Tensor | None = None) -> None:
        """Gradients count times `scale`. Where `fine` is false nothing changes but counts, which
        `uncount` puts right. Both are on the weights' device.
        """
        self.t += 1
        skipped = None if fine is None else (~fine).float()
        if self.exact is not None:
            for group in self.exact.param_groups:
                group["lr"] = lr
            if self.in_one_pass:
                self._one_pass(self.exact, lr, scale, skipped)
            else:
                self._by_torch(self.exact, scale, skipped)
        now = rates(lr, self.betas, self.weight_decay, self.t)
        for weight, master, moments in self.coded:
            if master.grad is not None:
                _fastest(master)(weight, master, master.grad, moments, now, scale, skipped)

    def _by_torch(
        self, exact: torch.optim.AdamW, scale: Tensor | None, skipped: Tensor | None
    ) -> None:
        gradients = [p.grad for _, p in self.not_coded if p.grad is not None]
        if scale is not None and gradients:
            torch._foreach_mul_(gradients, scale)
        exact.found_inf = skipped  # type: ignore[attr-defined] # as a GradScaler tells it
        exact.step()
        copied = [(weight, p) for weight, p in self.not_coded if weight is not p]
        if copied:
            weights, masters = zip(*copied, strict=True)
            torch._foreach_copy_(weights, masters)

    def _one_pass(
        self, exact: torch.optim.AdamW, lr: float, scale: Tensor | None, skipped: Tensor | None
    ) -> None:
        """With torch's moments. Each parameter has its own count, since a layer may be left out of
        a step.
        """
        from equipoise.kernels import triton_adamw

        by_count = defaultdict(list)
        self.counted = []
        for weight, master in self.not_coded:
            if master.grad is not None:
                self.counted.append(master)
                state = _begun(exact.state[master], master)
                m, v = state["exp_avg"], state["exp_avg_sq"]
                self.counts[master] = t = self.counts.get(master, 0) + 1
                by_count[t].append(WithMoments(weight, master, master.grad, m, v))
        for t, tensors in by_count.items():
            now = rates(lr, self.betas, self.weight_decay, t)
            triton_adamw.exact_step(tensors, now, scale, skipped)

    def uncount(self) -> None:
        """The last step was not `fine`."""
        self.t -= 1
        for master in self.counted:
            self.counts[master] -= 1

    def state_dict(self) -> dict[str, Any]:
        """That of torch's AdamW, with masters that are not the weights, and the 8-bit moments."""
        exact: dict[str, Any] = {"state": {}, "param_groups": []}
        if self.exact is not None:
            for master, count in self.counts.items():
                self.exact.state[master]["step"].fill_(count)
            exact = self.exact.state_dict()
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
            if self.in_one_pass:
                self.counts = {p: int(kept["step"]) for p, kept in self.exact.state.items()}
        self.t = state.get("t", 0)  # absent in the first runs, as is the rest
        for (weight, master), saved in zip(self.rounded, state.get("masters", []), strict=True):
            weight.copy_(master.copy_(saved))
        for (_, _, moments), saved in zip(self.coded, state.get("coded", []), strict=True):
            for name, tensor in saved.items():
                getattr(moments, name).copy_(tensor)


def clipping(norm: Tensor, limit: float) -> Tensor | None:
    """What gradients of this norm are multiplied by, so that it is at most `limit` (0: as it is);
    as in torch's clip_grads_with_norm_, but without a pass over them.
    """
    return (limit / (norm + 1e-6)).clamp(max=1.0) if limit else None


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


def _in_one_pass(weight: Tensor, master: Tensor) -> bool:
    plain = weight.is_contiguous() and master.is_contiguous()
    return plain and master.is_cuda and master.dtype == torch.float32


def _begun(state: dict[str, Tensor], master: Tensor) -> dict[str, Tensor]:
    """torch's state of a parameter, at its first gradient with moments of 0."""
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(master), torch.zeros_like(master)
    return state


def _fastest(master: Tensor) -> Any:
    if not master.is_cuda:
        return coded_step
    from equipoise.kernels import triton_adamw

    return triton_adamw.coded_step
