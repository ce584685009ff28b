"""Compile `_store` with a cache in 8 bits for sm_90, without a GPU, and write TTGIR, PTX of each case of tests/kernels/test_fp8.py::test_store."""
import sys, triton
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
from equipoise.kernels import triton_decode
def comp(fn, sig, const, opts, divisible):
    names = fn.arg_names
    full = {n: ("constexpr" if n in const else sig[n]) for n in names}
    attrs = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in divisible}
    return triton.compile(ASTSource(fn=fn, signature=full, constexprs={(names.index(k),): v for k, v in const.items()}, attrs=attrs), target=GPUTarget("cuda", 90, 32), options=opts)
i = "*i32"
for name, dt, D, kv, q, k in (("d32", "bf16", 32, 2, 0, 0), ("d64", "bf16", 64, 3, 1, 1), ("d128", "bf16", 128, 1, 1, 1), ("d64plain", "bf16", 64, 3, 0, 0), ("d256", "fp32", 256, 2, 0, 1)):
    sig = dict(qkv="*" + dt, keys="*fp8e4nv", values="*fp8e4nv", key_scales="*fp32", value_scales="*fp32", q="*" + dt, table=i, length=i, prompt=i, prompt_length=i, rope="*fp32", q_weight="*" + dt, q_eps="fp32", q_offset="fp32", k_weight="*" + dt, k_eps="fp32", k_offset="fp32", most="i32", H="i32")
    const = dict(WIDTH=1, KV_HEADS=kv, D=D, BLOCK=64, HEADS=16)
    if not q: const["q_weight"] = None
    if not k: const["k_weight"] = None
    out = comp(triton_decode._store, sig, const, dict(num_warps=4), {n for n in sig if sig[n][0] == "*"})
    for kind in ("ttgir", "ptx"): open(f"$WORK/store_{name}.{kind}", "w").write(out.asm[kind])
    text = out.asm["ttgir"]
    print(name, "smem", out.metadata.shared, "convert_layout of fp8:", sum("convert_layout" in l and "f8E4M3" in l for l in text.splitlines()), "bar.sync", out.asm["ptx"].count("bar.sync"), "shfl", out.asm["ptx"].count("shfl"), "prmt", out.asm["ptx"].count("prmt"))
