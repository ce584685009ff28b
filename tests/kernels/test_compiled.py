"""Kernels that the interpreter runs and the compiler may not: compiled for cards that are not here.

Triton's interpreter knows no tensor cores and no shared memory; what it accepts may still end the compiler.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from equipoise.kernels import triton_paged

capability, D = map(int, sys.argv[1:])
pointers = dict.fromkeys(("key_scales", "value_scales", "part", "sums"), "*fp32") | {
    "q": "*bf16", "out": "*bf16", "keys": "*fp8e4nv", "values": "*fp8e4nv", "table": "*i32", "length": "*i32",
}
numbers = dict.fromkeys(("scale", "softcap", "unit"), "fp32") | dict.fromkeys(("window", "queries", "H", "most"), "i32")
options = dict(QUERIES=8, IN_PARTS=True, SHARE=2, WIDTH=1, D=D, BLOCK=64, SPLITS=1, SOFTCAP=False, WINDOW=False,
               PRECISION="tf32", OVERLAP=capability >= 90, STAGES=triton_paged.OWN_FP8.stages)
kinds = pointers | numbers | dict.fromkeys(options, "constexpr")
signature = {name: kinds[name] for name in triton_paged._own.arg_names}
aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
kernel = triton.compile(
    ASTSource(triton_paged._own, signature, options, aligned),
    target=GPUTarget("cuda", capability, 32),
    options={"num_warps": triton_paged.OWN_FP8.warps},
)
print(json.dumps({"shared": kernel.metadata.shared, "code": kernel.asm["ptx"]}))
"""


@pytest.mark.parametrize(("capability", "D"), [(89, 128), (90, 64), (90, 128), (100, 128)])
def test_triton_compiles_attention_over_8_bits(capability, D):
    """For Ada, Hopper and Blackwell; on Hopper to products of 8-bit numbers that lie in shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability), str(D)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernel = json.loads(done.stdout.splitlines()[-1])
    assert kernel["shared"] < 99 * 1024  # what a program may have on Ada
    if capability == 90:
        assert "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3" in kernel["code"]
        assert "mma.sync" not in kernel["code"].replace("wgmma.", "")
        assert "cp.async.cg.shared.global" in kernel["code"]


# Of a launch, what differs from pass to pass, from batch size to batch size or from call to call.
VARYING = {"U", "R", "rows", "share", "programs", "queries", "most", "capacity", "slots", "steps", "wide"}
LAUNCHED = """
import importlib, inspect, json, pkgutil
import triton
from equipoise import kernels

found = {}
for name in (m.name for m in pkgutil.iter_modules(kernels.__path__) if m.name.startswith("triton_")):
    module = importlib.import_module(f"{kernels.__name__}.{name}")
    source = inspect.getsource(module)
    for kernel in (k for k in vars(module).values() if isinstance(k, triton.JITFunction)):
        if f"    {kernel.__name__}[" in source and kernel.__module__ == module.__name__:
            found[f"{name}.{kernel.__name__}"] = {p.name: p.do_not_specialize for p in kernel.params}
print(json.dumps(found))
"""


def test_no_kernel_is_compiled_again_for_another_number_of_tokens():
    """Triton compiles a kernel again for a number that is 1 or a multiple of 16: seconds in the middle of a run."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", LAUNCHED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert len(kernels) > 25
    specialised = {
        f"{kernel}({name})"
        for kernel, parameters in kernels.items()
        for name, kept in parameters.items()
        if name in VARYING and not kept
    }
    assert specialised == set()


COMPILE_STEP = """
import json, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from equipoise.kernels import triton_adamw

kinds = dict(table_ptr="*i64", owner_ptr="*i32", scale_ptr="*fp32", skipped_ptr="*fp32")
kinds |= dict.fromkeys(("m_share", "v_share", "decay", "step", "root"), "fp32")
options = dict(ROUNDED=tl.bfloat16, ALIGNED=sys.argv[1] == "True", TILE=triton_adamw.TILE, TILES=triton_adamw.TILES)
kinds |= dict.fromkeys(options, "constexpr")
signature = {name: kinds[name] for name in triton_adamw._exact.arg_names}
kernel = triton.compile(
    ASTSource(triton_adamw._exact, signature, options),
    target=GPUTarget("cuda", 90, 32),
    options={"num_warps": triton_adamw.TILE_WARPS},
)
print(json.dumps({"shared": kernel.metadata.shared, "code": kernel.asm["ptx"]}))
"""


@pytest.mark.parametrize("aligned", [True, False])
def test_the_optimizers_step_takes_16_bytes_at_once(aligned):
    """Of gradient, master and moments, at addresses from a table; nothing goes through shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_STEP, str(aligned)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernel = json.loads(done.stdout.splitlines()[-1])
    assert kernel["shared"] == 0
    assert kernel["code"].count("ld.global.v4.b32") == (4 if aligned else 0)
    assert kernel["code"].count("st.global.v4.b32") == (3 if aligned else 0)
    assert ".local" not in kernel["code"]
