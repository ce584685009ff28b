"""Seconds that each Triton kernel takes to compile, and how often: run in a tree on CUDA, with an empty cache.

python compile_times.py SECONDS TEST…   runs pytest on these for SECONDS at most, then lists kernels by total time.
"""
import collections, os, signal, sys, tempfile, time
os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
import pytest, triton
from triton.runtime import jit
spent, count, longest = collections.Counter(), collections.Counter(), collections.Counter()
def watched(compile):
    def call(src, *args, **kwargs):
        begin = time.perf_counter()
        try:
            return compile(src, *args, **kwargs)
        finally:
            took, name = time.perf_counter() - begin, getattr(src, "name", str(src))
            spent[name] += took; count[name] += 1; longest[name] = max(longest[name], took)
    return call
from triton.compiler import compiler
compiler.compile = watched(compiler.compile)
import triton.compiler
for owner in (triton, triton.compiler, jit):
    if hasattr(owner, "compile"): owner.compile = compiler.compile
if hasattr(jit.JITFunction, "compile"): jit.JITFunction.compile = compiler.compile
def report():
    for name, seconds in spent.most_common(): print(f"{name:28s} {count[name]:4d} variants {seconds:7.1f} s, longest {longest[name]:.2f} s")
    print(f"{'all':28s} {sum(count.values()):4d} variants {sum(spent.values()):7.1f} s of {time.perf_counter() - start:.1f} s")
start = time.perf_counter()
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop); signal.alarm(int(sys.argv[1]))
try:
    pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow and not long", "--durations=15", *sys.argv[2:]])
finally:
    signal.alarm(0); report()
