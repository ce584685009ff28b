"""Log-probabilities and entropies of response tokens, from a packed forward pass.

The distribution is softmax(logits / temperature), over the whole vocabulary or, for tokens that
were drawn from a part of it (top-k, top-p, min-p), over that part: log(π/S) = z_y − logsumexp of z
over the support, for which the head's rows of the support are enough.
The language-model head is applied to response positions only, a chunk at a time, and the backward
pass makes each chunk's logits again: no more than one chunk of logits exists at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels.autograd import apply
from equipoise.objective import Credit, LossOutput, Objective
from equipoise.policy import block, decoder
from equipoise.policy.attention import packed_attention
from equipoise.policy.layer import Layer
from equipoise.policy.model import Policy
from equipoise.policy.names import ModelError
from equipoise.policy.pack import Pack
from equipoise.policy.pack import pack as packed_rows
from equipoise.policy.support import Support

CHUNK_LOGITS = 1 << 24  # entries of one chunk of logits: 64 MiB in float32
WHOLE_HEAD = 1 << 12  # rows of a head that is not worth cutting down to a support
_PACKS: WeakSet[Policy] = WeakSet()  # models of transformers that keep packed responses apart


class TokenLogprobs(NamedTuple):
    """Of the target tokens of a pack, in their order: logprobs [N], entropy [N] (nats);
    float32, of a float64 model float64.
    """

    logprobs: Tensor
    entropy: Tensor


def token_logprobs(
    policy: Policy, pack: Pack, *, temperature: float = 1.0, support: Support | None = None
) -> TokenLogprobs:
    """log π(token | before) and the entropy there, at `temperature`; differentiable.

    `support` of the N targets: both are of π/S, the distribution over each target's support,
    renormalised.
    """
    if support is not None and len(support) != len(pack.targets):
        raise ValueError(f"{len(support)} supports for {len(pack.targets)} tokens: one for each")
    return decoder.gathered(policy.core, _token_logprobs, policy, pack, temperature, support)


def _token_logprobs(
    policy: Policy, pack: Pack, temperature: float, support: Support | None
) -> TokenLogprobs:
    hidden, head = _predicting(_hidden(policy, pack), pack), _plain_head(policy)
    if hidden.is_cuda and support is None:
        return TokenLogprobs(
            *kernels.fused_logprobs(
                hidden, head.weight, pack.targets, bias=head.bias, temperature=temperature
            )
        )
    return TokenLogprobs(
        *apply(_Head, hidden, head.weight, head.bias, pack.targets, temperature, support)
    )


def response_loss(
    policy: Policy, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> Tensor:
    """−mean log π over the tokens of all responses, response i after prompt i."""
    flat = torch.tensor(
        [token for response in responses for token in response], device=policy.device
    )
    lengths = torch.tensor([len(response) for response in responses])
    packed = packed_rows(prompts, flat, lengths, torch.arange(len(responses)))
    return -token_logprobs(policy, packed).logprobs.mean()


def token_loss(
    policy: Policy,
    pack: Pack,
    objective: Objective,
    old_logprobs: Tensor | None,
    credit: Credit,
    response: Tensor,
    *,
    position: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    temperature: float = 1.0,
    support: Support | None = None,
    exact: bool = False,
) -> LossOutput:
    """`objective.loss` of the pack's `token_logprobs`:
    the same numbers, to rounding, or with `exact` to the last bit. Without `old_logprobs` they are
    this pass's own.

    Unless `exact` or over a `support`, token-level objectives make each chunk's logits once on the
    GPU, and their loss goes through `backward` once.
    """
    others = {
        "position": position,
        "ref_logprobs": ref_logprobs,
        "rollout_logprobs": rollout_logprobs,
    }
    # The fused kernel rounds in another order than `token_logprobs`: `exact` promises ratios of
    # exactly 1, so both sides have to come from the same arithmetic.
    is_plain = exact or support is not None or policy.device.type != "cuda"
    if is_plain or old_logprobs is None:
        new = token_logprobs(policy, pack, temperature=temperature, support=support)
        old = new.logprobs.detach() if old_logprobs is None else old_logprobs
        return objective.loss(new.logprobs, old, credit, response, entropy=new.entropy, **others)

    def fused() -> LossOutput:
        hidden, head = _predicting(_hidden(policy, pack), pack), _plain_head(policy)
        return kernels.fused_loss(
            hidden,
            head.weight,
            pack.targets,
            objective,
            old_logprobs,
            credit,
            response,
            bias=head.bias,
            temperature=temperature,
            position=position,
            ref_logprobs=ref_logprobs,
            rollout_logprobs=rollout_logprobs,
        )

    return decoder.gathered(policy.core, fused)


@torch.no_grad()
def reference_logprobs(
    policy: Policy,
    reference: Policy | None,
    pack: Pack,
    *,
    temperature: float = 1.0,
    support: Support | None = None,
) -> Tensor:
    """Log-probabilities [N] under a `frozen_copy`, or None: the policy without its adapter.

    Over a `support` they are renormalised as the policy's are,
    so that the estimators are of KL(π/S ‖ π_ref/S_ref).
    """
    if reference is None and not policy.has_adapter:
        raise ValueError(
            "a policy without a LoRA adapter needs its reference as a second model; make a frozen_copy"
        )
    with policy.model.disable_adapter() if reference is None else nullcontext():
        return token_logprobs(
            reference or policy, pack, temperature=temperature, support=support
        ).logprobs


def _plain_head(policy: Policy) -> torch.nn.Linear:
    head = policy.core.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise ModelError(
            f"the head of {policy.name} is a {type(head).__name__}, not a plain linear layer"
        )
    config = policy.core.config
    # The log-probabilities are computed from the head's weights, chunk by chunk, without the
    # model's own forward pass: what it does to the logits afterwards would be left out.
    for setting in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, setting, None) not in (None, 1, 1.0):
            raise ModelError(
                f"{policy.name} changes its logits after the head ({setting}); this is not supported"
            )
    return head


def _predicting(hidden: Tensor, pack: Pack) -> Tensor:
    """hidden [U, d] of the entries that predict each target [N, d]."""
    if pack.firsts is None:
        return hidden.index_select(0, pack.predict)
    return apply(_Predicting, hidden, pack.predict, *pack.firsts)


class _Predicting(torch.autograd.Function):
    """hidden[predict]: an entry predicts one target or, at a prompt's end, several first ones.

    torch's own backward pass adds in the order that threads come,
    and rounds to hidden's precision each time.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, predict: Tensor, targets: Tensor, entries: Tensor, prompt: Tensor
    ) -> Tensor:
        ctx.save_for_backward(predict, targets, entries, prompt)
        ctx.entries = len(hidden)
        return hidden.index_select(0, predict)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        predict, targets, entries, prompt = ctx.saved_tensors
        out = d.new_zeros(ctx.entries, d.shape[1]).index_copy_(0, predict, d)
        # A product with a 0-1 matrix in place of atomic additions: the same order in every run.
        belongs = (prompt == torch.arange(len(entries), device=d.device)[:, None]).to(_wide_type(d))
        out.index_copy_(
            0, entries, (belongs @ d.index_select(0, targets).to(_wide_type(d))).to(d.dtype)
        )
        return out, None, None, None, None


@torch.no_grad()
def check_packing(policy: Policy) -> None:
    """Refuse a model of transformers' that cannot attend inside the sequences of a pack.

    Some families do not hand the pack on to their attention, and their responses would see each
    other: the same tokens are run packed and apart, once a policy, and must come out alike.
    """
    if policy.is_llama_like or policy in _PACKS:
        return
    _plain_head(policy)
    words = [word % policy.core.config.vocab_size for word in range(5, 11)]
    prompt, first, second = words[:2], words[2:4], words[4:]
    lengths, group = torch.tensor([2, 2]), torch.tensor([0, 0])
    packed = packed_rows(
        [prompt], torch.tensor([*first, *second], device=policy.device), lengths, group
    )
    try:
        together = _predicting(_through_transformers(policy, packed), packed)
    except ValueError as error:  # the attention's own refusals
        raise ModelError(f"{policy.name} cannot be trained: {error}") from error
    apart = []
    for response in (first, second):
        inputs = torch.tensor([[*prompt, *response]], device=policy.device)
        found = policy.core.base_model(input_ids=inputs, use_cache=False).last_hidden_state[0]
        apart.append(found[len(prompt) - 1 : -1])
    expected = torch.cat(apart).float()
    if not torch.allclose(
        together.float(), expected, rtol=0.05, atol=0.05 * float(expected.abs().max())
    ):
        raise ModelError(
            f"{policy.name} cannot be trained: {type(policy.core).__name__} of transformers does not keep packed "
            "responses apart; docs/architectures.md lists the families that are supported"
        )
    _PACKS.add(policy)


def _hidden(policy: Policy, pack: Pack) -> Tensor:
    """Hidden states [U, d] of the row, ready for the head."""
    core = policy.core
    if policy.is_llama_like and block.serves(core, pack):
        x = block.hidden_states(core, pack, gradient_checkpointing=policy.gradient_checkpointing)
        return decoder.normed(core, x)
    if policy.is_llama_like:

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            return packed_attention(qkv, layer.kv_heads, pack, layer.scale, layer.window)

        x = decoder.hidden_states(
            core,
            pack.inputs,
            pack.positions,
            attend,
            gradient_checkpointing=policy.gradient_checkpointing,
        )
        return decoder.normed(core, x)
    check_packing(policy)
    return _through_transformers(policy, pack)


def _through_transformers(policy: Policy, pack: Pack) -> Tensor:
    # A 4-d mask is passed on untouched; None would have transformers build one for the whole row.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=pack.inputs.device)
    out = policy.core.base_model(
        input_ids=pack.inputs[None],
        position_ids=pack.positions[None],
        attention_mask=no_mask,
        use_cache=False,
        pack=pack,
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


class _Head(torch.autograd.Function):
    """(hidden [N, d], weight [V, d], bias [V] or None, targets [N]) → log-probabilities and
    entropies [N]; with a support of the targets, over it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        support: Support | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=_wide_type(hidden))
        entropy = torch.empty_like(logprobs)
        for part in _parts(weight, bias, targets, support):
            logp = _log_softmax(hidden[part.rows], part, temperature)
            logprobs[part.rows] = logp.gather(1, part.targets[:, None])[:, 0]
            # A masked logit of −∞ has probability 0 and adds 0, not 0·∞.
            finite = logp.clamp_min(torch.finfo(logp.dtype).min)
            entropy[part.rows] = -(logp.exp() * finite).sum(1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.temperature, ctx.support = temperature, support
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden) if need_hidden else None
        d_weight = torch.zeros_like(weight, dtype=_wide_type(weight)) if need_weight else None
        if bias is not None and need_bias:
            d_bias = torch.zeros_like(bias, dtype=_wide_type(bias))
        else:
            d_bias = None
        for part in _parts(weight, bias, targets, ctx.support):
            rows = part.rows
            logp = _log_softmax(hidden[rows], part, ctx.temperature)
            # ∂ log p_y/∂z = 1_y − p;  ∂H/∂z = −p (log p + H)
            p = logp.exp()
            d = torch.zeros_like(p)
            if d_entropy is not None:
                finite = logp.clamp_min_(torch.finfo(logp.dtype).min)
                d.addcmul_(
                    p, finite.add_(entropy[rows, None]).mul_(d_entropy[rows, None]), value=-1
                )
            if d_logprobs is not None:
                g = d_logprobs[rows, None]
                d.addcmul_(p, g, value=-1).scatter_add_(1, part.targets[:, None], g)
            d = d.div_(ctx.temperature).to(hidden.dtype)
            if d_hidden is not None:
                torch.mm(d, part.weight, out=d_hidden[rows])
            if d_weight is not None and part.ids is None and d.dtype == d_weight.dtype:
                d_weight.addmm_(d.t(), hidden[rows])
            elif d_weight is not None:
                part.add_to(d_weight, (d.t() @ hidden[rows]).to(d_weight.dtype))
            if d_bias is not None:
                part.add_to(d_bias, d.sum(0).to(d_bias.dtype))
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(weight.dtype),
            None,
            None,
            None,
        )


class _Part(NamedTuple):
    """A chunk of tokens and what of the head it takes.

    rows: the tokens; ids: the head's rows, all of them if None; weight [v, d] and bias [v] of
    these; targets [r] among them; outside [r, v]: not in the token's support.
    """

    rows: slice
    ids: Tensor | None
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    outside: Tensor | None

    def add_to(self, whole: Tensor, part: Tensor) -> None:
        """whole [V, …] += part [v, …], at the rows of the head that the chunk takes."""
        if self.ids is None:
            whole += part
        else:
            whole.index_add_(0, self.ids, part)  # each id once: no order to depend on


def _parts(
    weight: Tensor, bias: Tensor | None, targets: Tensor, support: Support | None
) -> Iterator[_Part]:
    if support is None:
        for rows in _chunks(len(targets), len(weight)):
            yield _Part(rows, None, weight, bias, targets[rows], None)
        return
    for rows in _support_chunks(support, len(weight)):
        yield _support_part(rows, support.part(rows), weight, bias, targets[rows])


def _support_part(
    rows: slice, support: Support, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> _Part:
    """The head's rows in any of the tokens' supports, each once, for products of matrices."""
    row = torch.arange(len(support), device=targets.device)
    row = row.repeat_interleave(support.sizes.to(targets.device), output_size=len(support.ids))
    if int((support.ids == targets[row]).sum()) != len(targets):
        raise ValueError(
            "a token is not in its support, once: it must hold the token that was drawn from it"
        )
    column, ids = support.ids.long(), None
    if len(weight) > WHOLE_HEAD:
        ids, column = column.unique(return_inverse=True)
        targets = torch.searchsorted(ids, targets)
        weight, bias = weight[ids], None if bias is None else bias[ids]
    outside = torch.ones(len(support), len(weight), dtype=torch.bool, device=targets.device)
    outside[row, column] = False
    return _Part(rows, ids, weight, bias, targets, outside)


def _support_chunks(support: Support, vocabulary: int) -> Iterator[slice]:
    """Tokens whose logits over all that their supports have are at most CHUNK_LOGITS."""
    first, starts = 0, support.starts
    while first < len(support):
        size = len(support) - first
        while (
            size > 1
            and size * _widest(int(starts[first + size] - starts[first]), vocabulary) > CHUNK_LOGITS
        ):
            size = (size + 1) // 2
        yield slice(first, first + size)
        first += size


def _widest(entries: int, vocabulary: int) -> int:
    """The most of the head's rows that supports of so many entries can take."""
    return vocabulary if vocabulary <= WHOLE_HEAD else min(entries, vocabulary)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _wide_type(x: Tensor) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _log_softmax(hidden: Tensor, part: _Part, temperature: float) -> Tensor:
    logits = _logits(hidden, part.weight, part.bias)
    if temperature != 1:
        logits = logits.div_(temperature)
    if part.outside is not None:
        logits = logits.masked_fill_(part.outside, -torch.inf)
    return logits.log_softmax(-1)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """At least float32; on CUDA bfloat16's products are not rounded to it, as in samplers."""
    if hidden.is_cuda and hidden.dtype != _wide_type(hidden):
        logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
        return logits if bias is None else logits.add_(bias)
    if bias is None:
        logits = torch.mm(hidden, weight.t())
    else:
        logits = torch.addmm(bias, hidden, weight.t())
    return logits.to(_wide_type(logits))
