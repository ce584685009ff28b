"""Compiles kernels for a card that is not here: `python compiling.py WHAT CAPABILITY …` prints what came out."""

import importlib
import inspect
import json
import pkgutil
import sys
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equipoise import kernels
from equipoise.kernels import triton_attention, triton_paged

NUMBERS = {
    "fp32": ("scale", "softcap", "unit"),
    "i32": ("window", "queries", "H", "KV_HEADS", "U", "most", "n", "splits", "prompt_splits", "parts", "least"),
    "*fp32": ("lse", "delta", "sums", "part", "key_scales", "value_scales"),
    "*i32": ("table", "prompt_table", "start", "length", "prompt_length", "members"),
}
KINDS = {name: kind for kind, names in NUMBERS.items() for name in names}
PAGED = {"MEMBERS": 4, "SHARE": 2, "WIDTH": 1, "BLOCK": 64, "SOFTCAP": False, "WINDOW": False}
PAGED |= {"SPLIT": True, "PROMPT_SPLIT": True}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv"}


def compiled(kernel, capability, warps, options, dtype=torch.bfloat16, kinds=None):
    """`dtype`: of pointers that neither NUMBERS nor `kinds` names."""
    known = dict.fromkeys(kernel.arg_names, POINTERS[dtype]) | KINDS | dict.fromkeys(options, "constexpr")
    signature = {name: (known | (kinds or {}))[name] for name in kernel.arg_names}
    places = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in places}
    source = ASTSource(kernel, signature, {name: options[name] for name in options if name in signature}, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    return {"shared": made.metadata.shared, "code": made.asm["ptx"]}


def attention(capability, D, memory):
    """Forward and gradients, of short segments and of long ones; from Hopper on loaded through descriptors."""
    described, found = capability >= 90, {}
    for length in (100, 10_000):
        tiles = triton_attention.tiles(D, SimpleNamespace(mean_length=length), memory)
        for name, tile in zip(("_attend", "_query_gradient", "_key_gradient"), tiles, strict=True):
            options = {"D": D, "BLOCK_D": D, "OWN": tile.own, "PASSING": tile.passing, "STAGES": tile.stages}
            rows = dict.fromkeys(("own", "out"), tile.own) | {"passing": tile.passing}
            rows["d_out"] = tile.passing if name == "_key_gradient" else tile.own
            if name == "_attend":
                del rows["out"]
            kinds = {key: f"tensordesc<bf16[{n}, {D}]>" for key, n in rows.items()} if described else {}
            kernel, options = getattr(triton_attention, name), options | {"DESCRIBED": described}
            made = compiled(kernel, capability, tile.warps, options, kinds=kinds)
            found[f"{name}, {length}"] = made["shared"]
    return found


def decoding(capability, D, memory):
    """The most that is asked of a row: 64 queries, in float32 16 of the prompt's kernel."""
    triton_paged.shared_memory = lambda device: memory
    found = {}
    for dtype, cache in (
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float8_e4m3fn),
    ):
        fp8 = cache == torch.float8_e4m3fn
        if (fp8 and capability < 89) or (dtype == torch.float32 and D == 256):
            continue
        launches = triton_paged.launches(torch.empty(1, 1, D, dtype=dtype), fp8)
        for name, launch in zip(("_prompt", "_own"), launches, strict=True):
            wide = name == "_prompt" and dtype == torch.float32
            queries = triton_paged.WIDE_QUERIES if wide else triton_paged.QUERIES
            options = PAGED | {"QUERIES": queries, "D": D, "STAGES": launch.stages, "IN_PARTS": fp8}
            options |= {"PRECISION": "ieee" if dtype == torch.float32 else "tf32", "OVERLAP": capability >= 90}
            kernel = getattr(triton_paged, name)
            options = {key: value for key, value in options.items() if key in kernel.arg_names}
            options |= {} if fp8 else {"key_scales": None, "value_scales": None}
            kinds = dict.fromkeys(("keys", "values"), POINTERS[cache])
            made = compiled(kernel, capability, launch.warps, options, dtype, kinds)
            found[f"{name}, {dtype}, {cache}"] = made["shared"]
    return found


def attention_over_8_bits(capability, D):
    options = PAGED | {"QUERIES": 8, "D": D, "STAGES": triton_paged.OWN_FP8.stages, "IN_PARTS": True}
    options |= {"PRECISION": "tf32", "OVERLAP": capability >= 90}
    del options["MEMBERS"]
    kinds = dict.fromkeys(("keys", "values"), POINTERS[torch.float8_e4m3fn])
    return compiled(triton_paged._own, capability, triton_paged.OWN_FP8.warps, options, kinds=kinds)


def parameters_of_launches():
    """Of every kernel that is launched: its parameters, and whether Triton leaves their values alone."""
    found = {}
    for name in (m.name for m in pkgutil.iter_modules(kernels.__path__) if m.name.startswith("triton_")):
        module = importlib.import_module(f"{kernels.__name__}.{name}")
        source = inspect.getsource(module)
        for kernel in (k for k in vars(module).values() if isinstance(k, triton.JITFunction)):
            if f"    {kernel.__name__}[" in source and kernel.__module__ == module.__name__:
                found[f"{name}.{kernel.__name__}"] = {p.name: p.do_not_specialize for p in kernel.params}
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
