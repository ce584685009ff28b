"""Start vLLM for a shape once with a small cache, so that its compilation is found later."""
import os, sys, time
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
sys.path.insert(0, "/root/eq/benchmarks")
def main():
    import vllm
    import peers_sample, peers_scale
    LLM = vllm.LLM
    def small(**kw):
        kw.pop("gpu_memory_utilization")
        return LLM(gpu_memory_utilization=0.05, kv_cache_memory_bytes=int(3.2 * 2**30), **kw)
    vllm.LLM = small
    start = time.time()
    job = {"model": sys.argv[1], "works": peers_scale.WORKS, "seconds": 1.0, "memory": 0.05, "device": "cuda"}
    for row in peers_sample.theirs(job):
        print("WARM", sys.argv[1], round(time.time() - start, 1), {k: v for k, v in row.items() if k != "marks"}, flush=True)
if __name__ == "__main__":
    main()
