"""Compile what benchmarks/peers_scale.py will need, in little memory, so that its measured starts find it.

    cd /root/eq && . /root/pieces/common.sh && PYTHONPATH=/root/eq/src:/root/site timeout 300 python3 /root/pieces/warm.py

Every child goes through peers_sample.inside, so its environment and arguments are those of the measured run; only the
size of the caches differs, which vLLM's hash leaves out. vLLM keeps two things, the traced model (AOT) and its compiled
graphs, and names the second by files it learns of in another way when it loads the first: so it is started again until
a start has found both, three times at most, and the lines of its last start are shown. Run it from the repository's
root, with the same VLLM_CACHE_ROOT and HOME as the measured run. About 45 GiB with four jobs, 25 with two.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(os.environ.get("REPO", os.getcwd())).resolve() / "benchmarks"))
# As gpu.sh has them: of vLLM's variables nearly all are part of what its compiled models are found by.
os.environ.setdefault("VLLM_CACHE_ROOT", "/root/vllm-cache")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONUNBUFFERED"):
    os.environ.setdefault(name, "1")

MODELS = ("SmolLM2-135M", "Qwen3-0.6B", "Qwen3-4B", "Qwen3-1.7B")
TOKENS = 17_408  # of vLLM's cache: one response of the longest, and 1,024 requests of a block each
OURS = 6 << 30  # bytes of our cache
STARTS = 3
AOT, GRAPHS = "Directly load AOT compilation", "Directly load the compiled graph"
TOLD = (AOT, GRAPHS, "load failure", "Compiling a graph", "torch.compile took", "warmup run took", "loading took",
        "Graph capturing", "JIT monitor activated", "init engine", "Triton kernel JIT")  # fmt: skip


def inside(engine, folder):
    """A child of peers_scale.py with small caches."""
    import peers_sample
    import shapes

    measured = {"ours": peers_sample.ours, "theirs": peers_sample.theirs}

    def ours(job):
        import given_lengths

        class Small(given_lengths.GivenLengths):
            def __init__(self, policy):
                super().__init__(policy, memory=OURS)

        given_lengths.GivenLengths = Small
        yield from measured["ours"](job)

    def theirs(job):
        import vllm

        shape, whole = shapes.SHAPES[job["model"]], vllm.LLM

        def small(**asked):
            asked["gpu_memory_utilization"] = 0.05
            token = 4 * shape.layers * shape.kv_heads * shape.head_dim  # bytes
            return whole(kv_cache_memory_bytes=TOKENS * token, **asked)

        vllm.LLM = small
        yield from measured["theirs"](job)

    peers_sample.ours, peers_sample.theirs = ours, theirs
    peers_sample.inside(folder, engine)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=4, help="children at a time")
    parser.add_argument("--engines", nargs="+", default=["vllm", "equipoise"])
    parser.add_argument("--limit", type=float, default=200.0, help="seconds of a child")
    parser.add_argument("--starts", type=int, default=STARTS, help="of vLLM for a model at most")
    parser.add_argument("--logs", type=Path, default=Path("/root/logs/warm"))
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside[0], Path(options.inside[1]))
        return
    import children
    import peers_scale

    children.ended_by_signal()
    began = time.time()
    alive = []

    def start(engine, model, number):
        """Whether another one is not needed: all that vLLM compiled was found."""
        folder = options.logs / f"{model}-{engine}-{number}-{time.time_ns()}"
        job = {"model": model, "works": peers_scale.WORKS, "seconds": [0.3] * 3, "memory": 0.05, "device": "cuda"}
        child = children.Child([sys.executable, str(Path(__file__).resolve()), "--inside", engine], folder, job, {})
        alive.append(child)
        rows = []
        why = child.run(options.limit, rows.append)
        log = child.log.read_text(errors="replace")
        found = {"traced model": AOT in log, "graphs": GRAPHS in log}
        took = f"{rows[0]['start_seconds']:.1f} s" if rows else "none"
        text = f"{time.time() - began:6.1f} WARM {model} {engine}, start {number}: {took}, {len(rows)} of 3 rows {why}"
        lines = [text if engine == "equipoise" else f"{text} found: {found}"]
        if number > 1 or why:
            lines += ["      " + line[-200:] for line in log.splitlines() if any(words in line for words in TOLD)]
        print("\n".join(lines), flush=True)
        return all(found.values()) or not rows  # what failed fails again

    def one(engine, model):
        for number in range(1, 2 if engine == "equipoise" else options.starts + 1):
            if start(engine, model, number):
                break

    pool = ThreadPoolExecutor(options.jobs)
    try:
        begun = [pool.submit(one, engine, model) for engine in options.engines for model in options.models]
        for future in begun:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in (child for child in alive if child.process.poll() is None):
            child.end()


if __name__ == "__main__":
    main()
