"""The fused head on the GPU: forward and backward of a GRPO-style loss from hidden states and the head's weight.

Beside it in the same run, on the same numbers: the three bare matrix products it cannot do without (whole, on real
logits and their real gradient), eager torch in chunks, TRL's fused head (the log-probabilities GRPOTrainer trains on)
and Liger's fused GRPO loss, each with the same clipped loss. Times are medians; memory is the peak above the inputs,
the hidden states' gradient and the weight's float32 gradient. The roofline is the larger of the arithmetic at the
rate of an 8192³ product and of the least traffic at the rate of a copy, both measured here.
Writes benchmarks/results/fused_loss.json.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from report import write  # benchmarks/report.py
from timing import seconds
from torch import Tensor

import equipoise as eq
from equipoise.kernels import fused_logprobs, fused_loss

VOCABULARY, RESPONSE, LOW, HIGH = 151_936, 1024, 0.2, 0.28
GIB = 2**30


@dataclass
class Problem:
    hidden: Tensor  # [N, d] bfloat16
    weight: Tensor  # [V, d] bfloat16
    targets: Tensor  # [N]
    old: Tensor  # [N]
    response: Tensor  # [N]
    credit: eq.Credit
    objective: eq.Objective

    @property
    def advantage(self) -> Tensor:
        return self.credit.advantage.float()


def problem(n: int, d: int, *, certainty: float = 7.0, seed: int = 0) -> Problem:
    """Logits of standard deviation 2 and targets that stand out from them, so that π is neither flat nor certain."""
    g = torch.Generator("cuda").manual_seed(seed)
    weight = torch.randn(VOCABULARY, d, device="cuda", generator=g) * (2 / d**0.5)
    targets = torch.randint(VOCABULARY, (n,), device="cuda", generator=g)
    towards = F.normalize(weight[targets], dim=1)
    push = certainty + 2 * torch.randn(n, 1, device="cuda", generator=g)
    hidden = (torch.randn(n, d, device="cuda", generator=g) + push * towards).bfloat16()
    weight = weight.bfloat16()
    with torch.no_grad():
        logprobs = fused_logprobs(hidden, weight, targets)[0]
    old = logprobs + 0.1 * torch.randn(n, device="cuda", generator=g)
    rows = torch.arange(n // RESPONSE, device="cuda")
    lengths = torch.full_like(rows, RESPONSE)
    objective = eq.Objective.preset("dapo")
    credit = objective.assign((rows * 7 % 3 == 0).float(), rows // 8, lengths)
    return Problem(hidden.requires_grad_(), weight.requires_grad_(), targets, old, rows.repeat_interleave(RESPONSE),
                   credit, objective)  # fmt: skip


def clipped_loss(logprobs: Tensor, b: Problem, rows: slice) -> Tensor:
    """DAPO as one writes it by hand, over a chunk of the tokens."""
    a = b.advantage[b.response[rows]]
    ratio = torch.exp(logprobs - b.old[rows])
    return -torch.minimum(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a).sum() / len(b.targets)


def ours(b: Problem) -> None:
    fused_loss(b.hidden, b.weight, b.targets, b.objective, b.old, b.credit, b.response).loss.backward()


def ours_two_pass(b: Problem) -> None:
    logprobs, entropy = fused_logprobs(b.hidden, b.weight, b.targets)
    b.objective.loss(logprobs, b.old, b.credit, b.response, entropy=entropy).loss.backward()


def eager(b: Problem, chunk: int = 2048) -> None:
    """Forward and backward chunk by chunk: logits, float32 log-softmax, loss, autograd."""
    weight = b.weight.detach().requires_grad_()
    parts = []
    for i in range(0, len(b.hidden), chunk):
        x = b.hidden[i : i + chunk].detach().requires_grad_()
        logits = (x @ weight.t()).float()
        logprobs = logits.gather(1, b.targets[i : i + chunk, None])[:, 0] - logits.logsumexp(-1)
        clipped_loss(logprobs, b, slice(i, i + chunk)).backward()
        parts.append(x.grad)
    b.hidden.grad, b.weight.grad = torch.cat(parts), weight.grad


def trl(b: Problem) -> None:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    logprobs = ChunkedLogProbFunction.apply(
        b.hidden, b.weight, None, b.targets, 1.0, 32768, None, 1.0, ("log_probs", "entropy")
    )[0]
    clipped_loss(logprobs, b, slice(None)).backward()


def liger(b: Problem) -> None:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    shape = (-1, RESPONSE)
    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=False, use_ref_model=False, epsilon_low=LOW, epsilon_high=HIGH, loss_type="dapo"
    )
    mask = torch.ones_like(b.old).view(shape)
    loss(
        b.hidden.view(*mask.shape, -1), b.weight, b.targets.view(shape), mask, b.advantage,
        old_per_token_logps=b.old.view(shape),
    )[0].backward()  # fmt: skip


def peak(call: Callable[[], Any], b: Problem) -> float:
    """GiB above the inputs, the hidden states' gradient and a float32 gradient of the weight."""
    b.hidden.grad = b.weight.grad = None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    gradients = 2 * b.hidden.numel() + 4 * b.weight.numel()
    return (torch.cuda.max_memory_allocated() - before - gradients) / GIB


def ceilings() -> tuple[float, float]:
    """FLOP/s of an 8192³ bfloat16 product and bytes/s of a copy, read and written."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * 8192**3 / seconds(lambda: a @ b)
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return rate, 4 * source.numel() / seconds(lambda: target.copy_(source))


def bare(b: Problem) -> dict[str, float]:
    """The three products, whole: logits, and both gradients from the logits' real gradient."""
    x, w = b.hidden.detach(), b.weight.detach()
    z = torch.empty(len(x), VOCABULARY, device="cuda", dtype=torch.bfloat16)
    first = seconds(lambda: torch.mm(x, w.t(), out=z))
    g = b.advantage[b.response] / len(x)
    for i in range(0, len(x), 1024):
        rows = slice(i, i + 1024)
        z[rows] = z[rows].float().softmax(1).mul_(-g[rows, None])
    z.scatter_add_(1, b.targets[:, None], g[:, None].bfloat16())
    second, third = seconds(lambda: z @ w), seconds(lambda: z.t() @ x)
    return {"logits": first, "hidden_gradient": second, "weight_gradient": third, "all": first + second + third}


def forget(b: Problem) -> None:
    b.hidden.grad = b.weight.grad = None


def measure(n: int, d: int, rate: float, bandwidth: float, peers: dict[str, Callable[[Problem], None]]) -> dict:
    b = problem(n, d)
    products = bare(b)
    torch.cuda.empty_cache()
    work = 6 * n * VOCABULARY * d
    traffic = 2 * (2 * n * d + VOCABULARY * d) + 4 * VOCABULARY * d
    out: dict[str, Any] = {
        "tokens": n, "hidden": d, "roofline_s": max(work / rate, traffic / bandwidth), "bare_products_s": products,
    }  # fmt: skip

    def timed(call: Callable[[Problem], None]) -> dict[str, float]:
        def once() -> None:
            forget(b)
            call(b)

        result = {"s": seconds(once), "peak_gib": peak(once, b)}
        forget(b)
        gc.collect()
        torch.cuda.empty_cache()
        return result

    for name, call in {"ours": ours, "ours_two_pass": ours_two_pass, **peers}.items():
        try:
            out[name] = timed(call)
        except torch.OutOfMemoryError:
            out[name] = {"s": float("nan"), "peak_gib": float("nan")}
            torch.cuda.empty_cache()
    with torch.no_grad():
        out["ours_logprobs_s"] = seconds(lambda: fused_logprobs(b.hidden, b.weight, b.targets))
    t = out["ours"]["s"]
    out["ratios"] = {
        "rate_of_bare_products": products["all"] / t,
        "rate_of_roofline": out["roofline_s"] / t,
        "logprobs_rate_of_bare_product": products["logits"] / out["ours_logprobs_s"],
        **{f"faster_than_{name}": out[name]["s"] / t for name in peers},
    }
    sides = ", ".join(f"{p} {1e3 * out[p]['s']:.0f} (+{out[p]['peak_gib']:.2f})" for p in ("ours_two_pass", *peers))
    print(f"{n:6d} × {d}: {1e3 * t:.1f} ms (+{out['ours']['peak_gib']:.2f} GiB); bare products "
          f"{1e3 * products['all']:.1f}, roofline {1e3 * out['roofline_s']:.1f}, {sides}", flush=True)  # fmt: skip
    print("        " + "  ".join(f"{k} {v:.3g}" for k, v in out["ratios"].items()), flush=True)
    return out


def exact_gradients(b: Problem, chunk: int = 512) -> tuple[Tensor, Tensor]:
    """In float32 throughout, from the same bfloat16 inputs."""
    x, w = b.hidden.detach().float(), b.weight.detach().float()
    dx, dw = torch.empty_like(x), torch.zeros_like(w)
    for i in range(0, len(x), chunk):
        rows = slice(i, i + chunk)
        logp = (x[rows] @ w.t()).log_softmax(-1)
        own = logp.gather(1, b.targets[rows, None])[:, 0].detach().requires_grad_()
        (g,) = torch.autograd.grad(clipped_loss(own, b, rows), own)
        dz = -logp.exp_() * g[:, None]
        dz.scatter_add_(1, b.targets[rows, None], g[:, None])
        dx[rows] = dz @ w
        dw.addmm_(dz.t(), x[rows])
    return dx, dw


def accuracy(calls: dict[str, Callable[[Problem], None]], n: int = 4096, d: int = 896) -> dict[str, Any]:
    """Cosine of the gradients with the float32 ones; and two runs of ours, bit for bit."""
    b = problem(n, d)
    wanted = exact_gradients(b)
    out: dict[str, Any] = {}
    for name, call in calls.items():
        forget(b)
        call(b)
        got = (b.hidden.grad, b.weight.grad)
        cosines = [float(F.cosine_similarity(x.double().flatten(), y.double().flatten(), 0))
                   for x, y in zip(got, wanted, strict=True)]  # fmt: skip
        out[name] = {"hidden": cosines[0], "weight": cosines[1]}
        print(
            f"1 − cosine with float32: {name:14s} hidden {1 - cosines[0]:.2e}, weight {1 - cosines[1]:.2e}", flush=True
        )
    forget(b)
    ours(b)
    first = b.hidden.grad.clone(), b.weight.grad.clone()
    forget(b)
    ours(b)
    out["same_bits"] = torch.equal(first[0], b.hidden.grad) and torch.equal(first[1], b.weight.grad)
    print(f"two runs, the same bits: {out['same_bits']}")
    return out


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 32768, 65536])
    parser.add_argument("--hidden", type=int, nargs="+", default=[896, 2048, 4096])
    parser.add_argument("--peers", nargs="*", default=["eager", "trl", "liger"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; there is none here")
    peers = {name: {"eager": eager, "trl": trl, "liger": liger}[name] for name in options.peers}
    rate, bandwidth = ceilings()
    print(f"8192³ bfloat16 product {rate / 1e12:.0f} TFLOP/s, copy {bandwidth / 1e12:.2f} TB/s")
    checked = accuracy({"ours": ours, "ours_two_pass": ours_two_pass, **peers})
    sizes = [measure(n, d, rate, bandwidth, peers) for d in options.hidden for n in options.tokens]
    write("fused_loss", {
        "packages": {p: version(p) for p in ("triton", "trl", "liger-kernel")}, "vocabulary": VOCABULARY,
        "product_flops": rate, "copy_bytes_per_s": bandwidth, "accuracy": checked, "sizes": sizes,
    })  # fmt: skip


if __name__ == "__main__":
    main()
