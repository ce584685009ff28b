"""Each draw's distance from the nearest edge of its CDF, by the trainer's logits in float64, for the two tests that parted on CUDA."""
import sys, copy
sys.path[:0] = ["tests/rollout", "tests/policy", "."]
import torch
import tiny_models
from equipoise import policy as p
from equipoise.rollout import NativeSampler, PagedSampler, SamplingParams
from equipoise.kernels.uniform import response_keys, uniforms
from equipoise.tasks import open_task

def margins(policy, r, names, n, params, step, dtype):
    model = copy.deepcopy(policy.model).to(dtype)
    out, at = [], 0
    for i, length in enumerate(r.lengths.tolist()):
        prompt = list(r.prompts[i // n]); toks = r.tokens[at:at+length].tolist(); at += length
        with torch.no_grad():
            z = model(torch.tensor([prompt + toks])).logits[0, len(prompt)-1:-1].double()
        z = z[:, : ]
        cdf = (z / params.temperature).softmax(-1).cumsum(-1)
        key = response_keys(params.seed, step, [names[i // n]], torch.tensor([i % n]))
        u = uniforms(key, torch.arange(length))[0].double()
        drawn = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]
        gap = (cdf - u[:, None]).abs()
        edge = gap.min(-1)
        for t in range(length):
            out.append((float(edge.values[t]), i // n, i % n, t, toks[t], int(drawn[t]), [round(x,7) for x in cdf[t, max(0,int(edge.indices[t])-1):int(edge.indices[t])+2].tolist()], int(edge.indices[t])))
    return sorted(out)
policy, prompts = tiny_models.policy("grouped"), tiny_models.prompts(7)
names = [f"prompt {i}" for i in range(7)]
params = SamplingParams(max_tokens=40, temperature=0.3, seed=5)
r = NativeSampler(policy).sample(prompts, 3, params, keys=names, step=2)
print("first response", r.tokens[: int(r.lengths[0])].tolist())
m = margins(policy, r, names, 3, params, 2, torch.float64)
print("draws", len(m), "wrong in f64", [x for x in m if x[4] != x[5]])
for x in m[:8]: print(x)
print([x for x in m if x[1:4] == (0,0,30)])
policy, task = p.load("abacus"), open_task("arithmetic", 0)
prompts = [p.encode(policy, task.prompt(i).text) for i in range(6)]
params = SamplingParams(max_tokens=task.max_tokens, seed=1)
r = PagedSampler(policy).sample(prompts, 8, params)
print("abacus", policy.dtype, r.prompts[:2])
m = margins(policy, r, list(range(6)), 8, params, 0, torch.float64)
print("draws", len(m), "wrong in f64", [x for x in m if x[4] != x[5]])
for x in m[:8]: print(x)
