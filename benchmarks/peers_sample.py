"""One engine samples responses of given lengths: the children of benchmarks/peers_scale.py.

Every response ends at its own length, drawn once for all engines: vLLM gets it as `max_tokens` with
`ignore_eos`, our sampler as the response's limit. Ours reserves its cache and its buffers as if it
knew the longest alone, which is what it knows in training; vLLM does not use the number ahead
either. Both return the log-probability of every drawn token, vLLM as flat lists, the fastest form it
has. What is done once in a run (start, capture of graphs, a short call) is timed apart.

`marks` are a few pairs of seconds and tokens drawn by then: they compare two engines over the same
work where one of them was cut off.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import children  # benchmarks/children.py
import lengths as spread
import shapes
import torch
from torch import Tensor

GROUP, PROMPT = 16, 128
MEAN, CV = 0.4, 0.6  # of the longest, and of the lengths: a twentieth of them is cut at the longest
EVERY = 0.25  # seconds between marks
KEPT = 12  # marks of a row


class Work(NamedTuple):
    """`rows` responses of up to `longest` tokens."""

    longest: int
    rows: int

    def __str__(self) -> str:
        return f"{self.longest} x {self.rows}"

    def lengths(self) -> list[int]:
        found: list[int] = spread.lognormal(self.rows, MEAN * self.longest, CV, self.longest).tolist()
        return found

    def prompts(self, vocabulary: int) -> list[list[int]]:
        g = torch.Generator().manual_seed(self.longest)
        found: list[list[int]] = torch.randint(3, vocabulary, (self.rows // GROUP, PROMPT), generator=g).tolist()
        return found


class Marks:
    """Seconds and tokens of a measurement; `is_over` once its time is up."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.start = self.last = time.perf_counter()
        self.rows: list[tuple[float, int]] = []

    def look(self, count: Callable[[], int]) -> bool:
        """Whether the time is up. The tokens are counted now and then only: counting takes time."""
        now = time.perf_counter()
        if now - self.last >= EVERY:
            self.last = now
            self.rows.append((now - self.start, count()))
        return now - self.start > self.limit

    def row(self, work: Work, tokens: int, cut: bool) -> dict[str, Any]:
        seconds = time.perf_counter() - self.start
        return {
            "longest": work.longest,
            "rows": work.rows,
            "mean_length": sum(work.lengths()) / work.rows,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "cut": cut,
            "marks": [[round(at, 3), count] for at, count in (*thinned(self.rows), (seconds, tokens))],
        }


def thinned(rows: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most KEPT of them, evenly."""
    return rows[:: -(-len(rows) // KEPT) or 1]


class TimeIsUpError(Exception):
    """A measurement is cut off; what was drawn counts."""


def measured(job: dict[str, Any]) -> Iterator[tuple[Work, float]]:
    """What to measure, and the seconds after which it is cut."""
    for work, seconds in zip(job["works"], job["seconds"], strict=True):
        if seconds > 0:
            yield Work._make(work), seconds


def ours(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Our paged sampler, in the trainer's process as always."""
    from given_lengths import GivenLengths  # benchmarks/given_lengths.py

    from equipoise.rollout import SamplingParams, paged

    class Timed(paged._Call):
        marks: Marks | None = None

        def _steps(self, steps: int) -> None:
            super()._steps(steps)
            if Timed.marks is not None and Timed.marks.look(self.tokens_so_far):
                raise TimeIsUpError(self.tokens_so_far())

        def tokens_so_far(self) -> int:
            scheduler = self.scheduler
            return int(self.lengths.sum() + scheduler.drawn[: scheduler.count].sum())

    with mock.patch.object(paged, "_Call", Timed):
        begun = time.perf_counter()
        policy = shapes.endless(job["model"], device=job["device"], dtype=_dtype(job))
        for work, seconds in measured(job):
            sampler = GivenLengths(
                policy,
                cache_dtype="fp8" if job["fp8_cache"] else "auto",
                weights_dtype="fp8" if job["fp8_weights"] else "auto",
            )
            prompts = work.prompts(policy.core.config.vocab_size)
            params = SamplingParams(max_tokens=work.longest, seed=1)
            Timed.marks, sampler.lengths = None, _falling(work, policy.device)
            sampler.sample(prompts, GROUP, params)  # captures the graph of every batch size
            start_seconds = time.perf_counter() - begun
            sampler.lengths = torch.tensor(work.lengths(), device=policy.device)
            Timed.marks = Marks(seconds)
            try:
                rollouts = sampler.sample(prompts, GROUP, params)
                row = Timed.marks.row(work, len(rollouts.logprobs), cut=False)
            except TimeIsUpError as cut:
                row = Timed.marks.row(work, cut.args[0], cut=True)
            yield row | {"start_seconds": start_seconds, "device_gib": _device_gib(job)}
            begun = time.perf_counter()


def _falling(work: Work, device: torch.device) -> Tensor:
    """[rows] lengths after which the batch is of every size that has a graph, one after the other."""
    from equipoise.rollout import paged

    sizes = torch.tensor([size for size in paged.BUCKETS if size < work.rows])
    # The first `size` responses live on when the batch has fallen to that size.
    lasts = (torch.arange(work.rows)[:, None] < sizes).sum(1)
    return (paged.WINDOW * (1 + lasts)).clamp_max(work.longest).to(device)


def theirs(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """vLLM's engine: in a process of its own, as its users run it, or in this one."""
    from vllm import LLM

    # Of all lengths, also those that are left out: the engine is the same whatever is measured.
    works = [Work._make(work) for work in job["works"]]
    rows, longest = max(work.rows for work in works), max(work.longest for work in works)
    begun = time.perf_counter()
    # vLLM finds what it compiled before by the folder's name: always the same one.
    folder = Path(tempfile.gettempdir()) / f"shape-{job['model']}"
    config = shapes.configuration(job["model"], end=None)
    config.architectures = [config.model_type.capitalize() + "ForCausalLM"]
    config.save_pretrained(folder)
    # On the CPU there are no graphs to capture, and memory is not a share of a device's.
    room: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 28, "enforce_eager": True}
    if job["device"] == "cuda":
        room = {
            "gpu_memory_utilization": job["memory"],
            "compilation_config": {"cudagraph_capture_sizes": _graph_sizes(rows)},
        }
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=str(_dtype(job)).removeprefix("torch."),
        max_model_len=PROMPT + longest,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        kv_cache_dtype="fp8" if job["fp8_cache"] else "auto",
        quantization="fp8" if job["fp8_weights"] else None,
        **room,
    )
    for work, seconds in measured(job):
        _generate(llm, work, [16] * work.rows, Marks(60))
        start_seconds = time.perf_counter() - begun
        llm.reset_prefix_cache()  # prompts are new in every step of training
        row = _generate(llm, work, work.lengths(), Marks(seconds))
        yield row | {"start_seconds": start_seconds, "device_gib": _device_gib(job), "settings": _settings(llm)}
        begun = time.perf_counter()


def _generate(llm: Any, work: Work, lengths: list[int], marks: Marks) -> dict[str, Any]:
    """What `LLM.generate` does, with an eye on the clock."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    prompts = work.prompts(llm.model_config.hf_config.vocab_size)
    for row, length in enumerate(lengths):
        params = SamplingParams(
            temperature=1.0,
            max_tokens=length,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(str(row), {"type": "token", "prompt_token_ids": prompts[row // GROUP]}, params)
    done: dict[int, int] = {}
    cut = False

    def so_far() -> int:
        running = engine.output_processor.request_states.values()
        return sum(done.values()) + sum(state.detokenizer.num_output_tokens() for state in running)

    while engine.has_unfinished_requests() and not cut:
        for output in engine.step():
            answer = output.outputs[0]
            done[int(output.request_id)] = len(answer.logprobs.logprobs)
        cut = marks.look(so_far)
    found = marks.row(work, so_far(), cut=engine.has_unfinished_requests())
    engine.abort_request([str(row) for row in range(work.rows) if row not in done])
    while engine.has_unfinished_requests():
        engine.step()
    return found


def _graph_sizes(rows: int) -> list[int]:
    """Up to the batch, so that no step runs without a graph; close enough that little is padding."""
    return [*(n for n in (1, 2, 4, 8, 16, 32) if n < rows), *range(48, min(rows, 256), 16), *range(256, rows, 32), rows]


def _settings(llm: Any) -> dict[str, Any]:
    """What vLLM made of the arguments."""
    import vllm

    config = llm.llm_engine.vllm_config
    return {
        "version": vllm.__version__,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "cache_blocks": config.cache_config.num_gpu_blocks,
    }


def _dtype(job: dict[str, Any]) -> torch.dtype:
    return torch.bfloat16 if job["device"] == "cuda" else torch.float32


def _device_gib(job: dict[str, Any]) -> float | None:
    """Of the whole device, every process counted."""
    if job["device"] != "cuda":
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def precision(engine: str) -> dict[str, bool]:
    """What of the engine is in 8 bits, by its name."""
    return {"fp8_cache": "fp8" in engine, "fp8_weights": engine.endswith("fp8")}


def inside(folder: Path, engine: str) -> None:
    """The child's work, after its imports."""
    is_ours = engine.startswith("equipoise")
    if is_ours:
        import equipoise.rollout  # noqa: F401
    else:
        # In a process of its own unless the name says otherwise.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int("in process" not in engine))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        # vLLM finds what it compiled before only where all its variables are the same as then, also the one above.
        # Triton's usual folder: vLLM would take one for each shape, and compile its sampler's kernels again in each.
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
        import vllm  # noqa: F401
    job = children.job(folder) | precision(engine)
    for row in (ours if is_ours else theirs)(job):
        children.found(folder, row)
        print({k: v for k, v in row.items() if k != "marks"}, flush=True)
