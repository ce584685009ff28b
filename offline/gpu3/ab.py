"""Tokens a second of the paged sampler as the tree on PYTHONPATH has it: python ab.py NAME MODEL ROWS TOKENS"""
import sys, time, torch
sys.path.insert(0, sys.argv[5] + "/benchmarks")
from shapes import endless
from equipoise.rollout import PagedSampler, SamplingParams
name, model, rows, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
policy = endless(model)
g = torch.Generator().manual_seed(1)
prompts = torch.randint(0, policy.core.config.vocab_size, (rows // 16, 100), generator=g).tolist()
s = PagedSampler(policy)
s.sample(prompts, 16, SamplingParams(max_tokens=64, seed=0))
for k in (1, 2, 3):
    torch.cuda.synchronize(); t = time.perf_counter()
    r = s.sample(prompts, 16, SamplingParams(max_tokens=tokens, seed=k)); torch.cuda.synchronize()
    d = time.perf_counter() - t
    print("AB", name, model, rows, tokens, round(d, 3), "s", round(int(r.lengths.sum()) / d / 1e3, 1), "k tokens/s", flush=True)
