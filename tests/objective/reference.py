"""Slow, plain double loops written from formulas.md, one response and one token at a time. Nothing of ours is imported.

Numbers are Python floats where no gradient flows, and 0-dim float64 tensors on the way to the log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def members(group: Sequence[int], i: int) -> list[int]:
    return [j for j in range(len(group)) if group[j] == group[i]]


def advantage(name: str, r: Sequence[float], T: Sequence[int], group: Sequence[int], **o) -> list[float]:
    out = []
    for i in range(len(r)):
        g = members(group, i)
        G, mu = len(g), sum(r[j] for j in g) / len(g)
        ss = sum((r[j] - mu) ** 2 for j in g)
        d = r[i] - mu
        if name == "reward":
            out.append(r[i])
        elif all(r[j] == r[i] for j in g):
            out.append(0.0)
        elif name == "grpo" and o.get("std", "paper") == "paper":
            out.append(d / math.sqrt(ss / G + o.get("eps", 1e-6)))
        elif name == "grpo":
            out.append(d / (math.sqrt(ss / (G - 1)) + o["eps"]))
        elif name == "dr_grpo":
            out.append(d)
        elif name == "rloo":
            out.append(r[i] - sum(r[j] for j in g if j != i) / (G - 1))
        elif name == "batch_std":
            m = sum(r) / len(r)
            out.append(d / math.sqrt(sum((x - m) ** 2 for x in r) / len(r) + 1e-6))
        elif name == "maxrl":
            out.append(d / (mu + 1e-6))
        elif name == "opo":
            total = sum(T[j] for j in g)
            out.append(r[i] - sum(T[j] * r[j] for j in g) / total if total else 0.0)
        elif name == "pass_at_k":
            k = o["k"]
            wrong = sum(r[j] == 0 for j in g)
            R = 1 - comb(wrong, k) / comb(G, k)
            sigma = math.sqrt(R * (1 - R))
            if sigma == 0:
                out.append(0.0)
            elif r[i] > 0:
                out.append((1 - R) / sigma)
            else:
                out.append((1 - R - comb(wrong - 1, k - 1) / comb(G - 1, k - 1)) / sigma)
    return out


def effective_length(rule: str, A: Sequence[float], T: Sequence[int], group: Sequence[int], **o) -> list[float]:
    """ℓ_i; 0 where the response has no weight."""
    P, out = len(set(group)), []
    for i in range(len(A)):
        g = members(group, i)
        if rule == "token" and o["over"] == "group":
            out.append(sum(T[j] for j in g) / len(g))
        elif rule == "token":
            out.append(sum(T) / (P * len(g)))  # so that 1/(P·G·ℓ) = 1/N
        elif rule == "sequence":
            out.append(T[i])
        elif rule == "constant":
            out.append(o["length"])
        elif rule == "balanced":
            heard = o.get("masked", "drop") == "pass"  # a response without tokens counts
            side = [j for j in g if sign(A[j]) == sign(A[i]) != 0 and (heard or T[j] > 0)]
            M = sum(abs(A[j]) for j in side)
            out.append(sum(abs(A[j]) * T[j] for j in side) / M if side else 0.0)
            if o.get("over") == "batch" and side:  # the group weighs by its tokens: its mean T over the batch's
                out[-1] *= (sum(T) / (P * len(g))) / (sum(T[j] for j in g) / len(g))
        elif rule == "power":
            real = [t for t in T if t > 0]
            scale = sum(t ** -o["alpha"] for t in real) / len(real) if real else 0.0
            L = sum(real) / len(real) if real and o.get("length") is None else o.get("length") or 0.0
            out.append(T[i] ** o["alpha"] * scale * L if T[i] else 0.0)
    return out


def weights(rule: str, A: Sequence[float], T: Sequence[int], group: Sequence[int], **o) -> list[float]:
    """w_i = 1/(P·G·ℓ_i)"""
    lengths = effective_length(rule, A, T, group, **o)
    P = len(set(group))
    return [1 / (P * len(members(group, i)) * l) if l > 0 and T[i] > 0 else 0.0 for i, l in enumerate(lengths)]


def response_value(name: str, A: float, logp: Sequence[Tensor], old: Sequence[float], **o) -> Tensor:
    """Σ_t φ_t of one response (so that w_i times it is its share of J)."""
    T = len(logp)
    delta = [l - q for l, q in zip(logp, old, strict=True)]
    total = torch.zeros((), dtype=torch.float64)
    s = torch.exp(sum(delta) / T)
    W = torch.exp(sum(d.clamp(-20, 20) for d in delta).clamp(math.log(1e-8), 20)).detach()
    if name == "gspo":
        clipped = s.clamp(1 - o["low"], 1 + o["high"])
        return T * torch.minimum(s * A, clipped * A)
    if name == "gmpo":
        part = [torch.clamp(d, max=o["high"]) if A > 0 else torch.clamp(d, min=-o["low"]) for d in delta]
        return T * A * torch.exp(sum(part) / T)
    for l, q, d in zip(logp, old, delta, strict=True):
        rho = d.clamp(-20, 20).exp()
        if name in ("ppo_clip", "dual_clip"):
            phi = torch.minimum(rho * A, rho.clamp(1 - o["low"], 1 + o["high"]) * A)
            if name == "dual_clip" and A < 0:
                phi = torch.maximum(phi, torch.tensor(o["cap"] * A, dtype=torch.float64))
        elif name == "cispo":
            phi = rho.detach().clamp(max=o["cap"]) * A * l
        elif name == "sapo":
            tau = o["tau_positive"] if A > 0 else o["tau_negative"]
            phi = 4 / tau * torch.sigmoid(tau * (rho - 1)) * A
        elif name == "vespo":
            k, lam = (o["k_positive"], o["lam_positive"]) if A > 0 else (o["k_negative"], o["lam_negative"])
            phi = math.exp(lam) * W**k * torch.exp(-lam * W) * A * l
        elif name == "aspo":
            # π_old·π/sg(π)² for A > 0: value and gradient weight 1/ρ; π/π_old otherwise
            value = min(1 / rho.item() if A > 0 else rho.item(), o["cap"])
            masked = rho.item() > 1 + o["high"] if A > 0 else rho.item() < 1 - o["low"]
            phi = 0.0 * l if masked else value * A * (l - l.detach()).exp()
        elif name == "dppo":
            p, b = l.exp().item(), math.exp(q)
            kl = b * (q - l.item()) + (1 - b) * math.log((1 - b + 1e-8) / (1 - p + 1e-8))
            if o["divergence"] == "tv":
                masked = p - b > o["high"] if A > 0 else p - b < -o["low"]
            else:
                masked = (kl > o["high"] and p > b) if A > 0 else (kl > o["low"] and p < b)
            phi = 0.0 * l if masked else rho.detach().clamp(max=o["cap"]) * A * l
        elif name == "reinforce":
            phi = A * l
        elif name == "symmetric_clip":
            phi = rho.clamp(1 - o["low"], 1 + o["high"]) * A
        elif name == "dfpo":
            log_s = sum(delta) if o["ratio"] == "product" else sum(delta) / T
            inside = 1 - o["low"] <= rho.item() <= 1 + o["high"]
            phi = math.exp(min(max(log_s.item(), -20), 20)) * A * l if inside else 0.0 * l
        total = total + phi
    return total


def hadw(A: Sequence[float], r: Sequence[float], group: Sequence[int], C: float, lam: float) -> list[float]:
    out = []
    for i in range(len(A)):
        g = members(group, i)
        diff = sum(r[j] for j in g) / len(g) - C
        out.append(lam * math.exp(-sign(A[i]) * sign(diff) * abs(diff)) * A[i])
    return out
