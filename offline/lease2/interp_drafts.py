"""The paged sampler with its Triton kernels in the interpreter, against the CPU's own."""
import sys, time
sys.path[:0] = ["tests/rollout", "tests/policy", "."]
import torch
import tiny_models
from equipoise.kernels import decode, triton_decode, triton_drafts
from equipoise.rollout import NativeSampler, PagedSampler, SamplingParams, paged, blocks
decode._of = lambda x: triton_decode
decode._drafts_of = lambda x: triton_drafts
policy, prompts = tiny_models.policy("grouped"), tiny_models.prompts(7)
names = [f"prompt {i}" for i in range(7)]
params = SamplingParams(max_tokens=40, temperature=0.3, seed=5)
k = int(sys.argv[1]) if len(sys.argv) > 1 else 1
wanted = NativeSampler(policy).sample(prompts[:k], 3, params, keys=names[:k], step=2)
longest = blocks.blocks_for(max(map(len, prompts))) + blocks.blocks_for(39)
block_bytes = paged._cache_shape(policy, 1).numel() * 4
sampler = PagedSampler(policy, rows=3, memory=(1 + int(longest)) * block_bytes, speculation=2)
t = time.time()
for _ in range(2):
    ours = sampler.sample(prompts[:k], 3, params, keys=names[:k], step=2)
    print(torch.equal(ours.tokens, wanted.tokens), ours.drafts, round(time.time() - t), ours.lengths.tolist(), wanted.lengths.tolist(), flush=True)
    if ours.tokens.shape == wanted.tokens.shape: print((ours.logprobs - wanted.logprobs).abs().max())
    else: print(ours.tokens.tolist(), wanted.tokens.tolist())
