"""Kernels that the interpreter runs and the compiler may not: compiled for cards that are not here.

Triton's interpreter knows no tensor cores and no shared memory; what it accepts may still end the compiler, or ask for
more than a card has.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

KIB = 1024
ADA, AMPERE, HOPPER = 99 * KIB, 163 * KIB, 227 * KIB  # bytes of shared memory that a program may have
CARDS = {
    "RTX 4090": (89, ADA),
    "RTX 5090": (120, ADA),
    "A100": (80, AMPERE),
    "H100": (90, HOPPER),
    "B200": (100, HOPPER),
}
# Of a launch, what differs from pass to pass, from batch size to batch size or from call to call.
VARYING = {"U", "R", "rows", "share", "programs", "queries", "most", "capacity", "slots", "steps", "wide"}


def compiled(what, *numbers):
    """Of tests/kernels/compiling.py, in a process where kernels are compiled and not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), what, *map(str, map(int, numbers))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("capability", "D"), [(89, 128), (90, 64), (90, 128), (100, 128)])
def test_triton_compiles_attention_over_8_bits(capability, D):
    """For Ada, Hopper and Blackwell; on Hopper to products of 8-bit numbers that lie in shared memory."""
    kernel = compiled("attention_over_8_bits", capability, D)
    assert kernel["shared"] <= ADA
    if capability == 90:
        assert "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3" in kernel["code"]
        assert "mma.sync" not in kernel["code"].replace("wgmma.", "")
        assert "cp.async.cg.shared.global" in kernel["code"]


@pytest.mark.parametrize(("capability", "memory"), CARDS.values(), ids=CARDS.keys())
@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("what", ["attention", "decoding"])
def test_a_card_has_room_for_the_tiles(what, D, capability, memory):
    """Training of long segments and of wide heads ended on cards of 99 KiB, which those tried here are not."""
    found = compiled(what, capability, D, memory)
    assert {kernel: shared for kernel, shared in found.items() if shared > memory} == {}


def test_no_kernel_is_compiled_again_for_another_number_of_tokens():
    """Triton compiles a kernel again for a number that is 1 or a multiple of 16: seconds in the middle of a run."""
    kernels = compiled("parameters_of_launches")
    assert len(kernels) > 25
    specialised = {
        f"{kernel}({name})"
        for kernel, parameters in kernels.items()
        for name, kept in parameters.items()
        if name in VARYING and not kept
    }
    assert specialised == set()
