"""On the GPU machine, with PYTHONPATH=$HOME/site: does vLLM import, does FlashAttention 3 compute?

    python3 check.py [--seconds 240] [--llm]      --llm: also a tiny Qwen2 with random weights, 16 tokens

One line a part, each begins with CHECK; a failure names the missing module. Exit 0 when all is well.
"""
import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import sys
import time
import traceback

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

CHAIN = (
    "vllm", "vllm.platforms", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.flash_attn", "vllm.model_executor.models.qwen2", "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.llama", "vllm.model_executor.model_loader.dummy_loader",
    "vllm.device_allocator.cumem", "vllm.vllm_flash_attn",
)
failed = []


def part(name, call):
    start = time.perf_counter()
    try:
        found = call()
    except BaseException as error:
        failed.append(name)
        root = error
        while (root.__cause__ or root.__context__) is not None:
            root = root.__cause__ or root.__context__
        missing = next((e.name for e in (error, root) if isinstance(e, ModuleNotFoundError) and e.name), None)
        traceback.print_exc(limit=-8)
        print(f"CHECK FAILED {name}: {'MISSING MODULE ' + missing if missing else repr(error)[:300]}"
              f"{'' if root is error else ' <- ' + repr(root)[:300]}", flush=True)
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None
    print(f"CHECK ok {name} ({time.perf_counter() - start:.1f} s){'' if found is None else ': ' + str(found)}", flush=True)
    return found


def versions():
    told = []
    for name in ("torch", "triton", "transformers", "numpy", "tokenizers", "huggingface_hub", "safetensors", "accelerate",
                 "numba", "opencv-python-headless", "opencv-python", "protobuf", "pydantic", "pydantic_core", "httpx",
                 "typing_extensions", "pandas", "pillow", "psutil", "latex2sympy2_extended", "antlr4-python3-runtime",
                 "vllm", "trl", "datasets", "ray", "verl", "tensordict", "xgrammar", "flash_attn"):
        try:
            told.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            told.append(f"{name} -")
    return sys.version.split()[0] + ", " + ", ".join(told)


def owners():
    """The machine's own must win."""
    bad = []
    for name in ("torch", "transformers", "numpy", "triton", "tokenizers", "safetensors", "huggingface_hub"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or "$HOME/site" in spec.origin:
            bad.append(f"{name}: {spec and spec.origin}")
    if bad:
        raise RuntimeError("; ".join(bad))


def there():
    wanted = ("numba", "cv2", "PIL", "psutil", "regex", "yaml", "requests", "tqdm", "einops", "google.protobuf", "sentencepiece",
              "tiktoken", "zmq", "msgspec", "cbor2", "pydantic", "cloudpickle", "setproctitle", "jinja2", "latex2sympy2_extended", "antlr4", "pandas", "datasets", "trl")
    missing = []
    for name in wanted:
        try:
            if importlib.util.find_spec(name) is None:
                missing.append(name)
        except ModuleNotFoundError:
            missing.append(name)
    return "all there" if not missing else "not there: " + ", ".join(missing)


def platform():
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        raise RuntimeError(f"vLLM's platform is {current_platform!r}, not CUDA")
    return f"{type(current_platform).__name__}, {torch.cuda.get_device_name()}, {current_platform.get_device_capability()}"


def operators():
    import torch

    names = [n for n in ("rms_norm", "silu_and_mul", "rotary_embedding") if not hasattr(torch.ops._C, n)]
    if names:
        raise RuntimeError(f"torch.ops._C lacks {names}: _C_stable_libtorch did not load")
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(4, 32, device="cuda", dtype=torch.bfloat16)
    torch.ops._C.silu_and_mul(out, x)
    off = (out.float() - torch.nn.functional.silu(x[:, :32].float()) * x[:, 32:].float()).abs().max().item()
    if off > 0.05:
        raise RuntimeError(f"silu_and_mul is off by {off}")
    return f"silu_and_mul within {off:.1e}"


def fa3():
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func
    from vllm.vllm_flash_attn.flash_attn_interface import FA2_AVAILABLE, FA3_AVAILABLE, FA3_UNAVAILABLE_REASON

    if not FA3_AVAILABLE:
        raise RuntimeError(f"FA3 not available: {FA3_UNAVAILABLE_REASON}")
    g = torch.Generator("cuda").manual_seed(0)
    worst = 0.0
    for heads, key_heads, size in ((9, 3, 64), (16, 8, 128)):
        lengths = [100, 257, 33]
        cu = torch.tensor([0, 100, 357, 390], device="cuda", dtype=torch.int32)
        q = torch.randn(390, heads, size, device="cuda", dtype=torch.bfloat16, generator=g)
        k, v = (torch.randn(390, key_heads, size, device="cuda", dtype=torch.bfloat16, generator=g) for _ in range(2))
        out = flash_attn_varlen_func(q=q, k=k, v=v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=257, max_seqlen_k=257,
                                     causal=True, fa_version=3)
        out = out[0] if isinstance(out, tuple) else out
        begin = 0
        for length in lengths:
            at = slice(begin, begin + length)
            begin += length
            qs, ks, vs = (x[at].float().transpose(0, 1)[None] for x in (q, k, v))
            wanted = torch.nn.functional.scaled_dot_product_attention(qs, ks, vs, is_causal=True, enable_gqa=True)[0]
            worst = max(worst, (out[at].float() - wanted.transpose(0, 1)).abs().max().item())
    if worst > 0.05:
        raise RuntimeError(f"FA3 is off by {worst}")
    return f"within {worst:.1e} of float32; FA2 there: {FA2_AVAILABLE} (left out on purpose)"


def fa3_alone():
    import torch

    folder = os.environ.get("SITE_FA3", "$HOME/site-fa3")
    if not os.path.isdir(folder):
        return "not unpacked"
    sys.path.insert(0, folder)
    from flash_attn_interface import flash_attn_varlen_func

    q, k, v = (torch.randn(64, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    cu = torch.tensor([0, 20, 64], device="cuda", dtype=torch.int32)
    out = flash_attn_varlen_func(q, k, v, cu, cu, 44, 44, causal=True)
    at = slice(20, 64)
    qs, ks, vs = (x[at].float().transpose(0, 1)[None] for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(qs, ks, vs, is_causal=True)[0].transpose(0, 1)
    off = (out[at].float() - wanted).abs().max().item()
    if off > 0.05:
        raise RuntimeError(f"FA3 is off by {off}")
    return f"within {off:.1e}"


def llm():
    import tempfile

    from transformers import Qwen2Config
    from vllm import LLM, SamplingParams

    config = Qwen2Config(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=512, architectures=["Qwen2ForCausalLM"])
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        engine = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=256,
                     max_num_seqs=8, gpu_memory_utilization=0.2, compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8]})
        params = SamplingParams(max_tokens=16, ignore_eos=True, detokenize=False, logprobs=0)
        outputs = engine.generate([{"prompt_token_ids": [5, 6, 7]}] * 4, params)
    return f"{[len(o.outputs[0].token_ids) for o in outputs]} tokens"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--llm", action="store_true")
    parser.add_argument("--fa3", action="store_true", help="FA3 without vLLM, and no more")
    options = parser.parse_args()

    def late(*_):
        raise TimeoutError(f"not done after {options.seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(options.seconds)
    print(f"CHECK versions {versions()}", flush=True)
    if options.fa3:
        part("fa3 alone", fa3_alone)
        print(f"CHECK {'ALL WELL' if not failed else 'FAILED'}", flush=True)
        os._exit(1 if failed else 0)
    part("the machine's own packages come first", owners)
    part("modules", there)
    part("torch", lambda: importlib.import_module("torch").__version__)
    for name in CHAIN:
        part(f"import {name}", lambda: getattr(importlib.import_module(name), "__version__", None))
    part("platform", platform)
    part("operators", operators)
    part("fa3", fa3)
    if options.llm:
        part("llm", llm)
    print(f"CHECK {'ALL WELL' if not failed else 'FAILED: ' + ', '.join(failed)}", flush=True)
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # an engine's threads do not hold it up


if __name__ == "__main__":
    main()
