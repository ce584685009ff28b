"""FlashAttention 3's forward, from vLLM 0.26.0's wheel (vllm_flash_attn/_vllm_fa3_C), without vLLM. No backward."""
import torch
import _vllm_fa3_C  # noqa: F401  registers torch.ops._vllm_fa3_C


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("vLLM's FlashAttention 3 has no backward")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return torch.ops._vllm_fa3_C.fwd(
        q, k, v, None, None, None, None, cu_seqlens_q, cu_seqlens_k, None, None, None, max_seqlen_q, max_seqlen_k,
        None, None, None, None, None, None, None, None, None, scale, causal, -1, -1, 0.0, True, None, 0, None, 0, None,
        1, 0, None,
    )[0]
