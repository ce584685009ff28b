"""vLLM as the sampler of our own trainer: in the trainer's process, on its device,
each using the memory in turn.

The engine is made once, from the policy's configuration and with weights that mean nothing. At
every call of `sample` it is woken, the policy's weights are copied into it in place (LoRA: merged
on the way), what it had cached of the old ones is forgotten, and its log-probabilities of a few
short responses are held against the trainer's: weights that did not arrive stop the run. Afterwards
it sleeps, where it can (CUDA), and its memory is the trainer's.

A response's draws are seeded as everywhere in this package, but they are vLLM's draws: other tokens
than the native sampler's for the same seed, and a logit that depends on the batch in its last bit
can tip a draw on the edge.
Not covered: several processes, quantised engines,
and models whose weights have other names in memory than on disk.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import os
import platform
import random
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.uniform import Key
from equipoise.policy import ModelError, Policy, PromptTooLong, Support, pack, token_logprobs
from equipoise.policy import memory as card
from equipoise.policy.merged import plain_weights
from equipoise.rollout.batch import Request, request
from equipoise.rollout.rollouts import Finish, Finished, Rollouts

PROBES, PROBE_TOKENS = 4, 16
# Nats, mean over the probes' tokens. Engine and trainer differ by rounding alone;
# other weights differ by far more.
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 1e-1}
MOST_TOP_K = 1000  # what vLLM tells of each token it tells in Python's numbers
TIES = 8  # tokens as likely as the k-th that are asked for besides: vLLM keeps them too


# vLLM's groups of processes are global: one at a time
_engines: weakref.WeakSet[VllmSampler] = weakref.WeakSet()


class StaleEngine(ModelError):
    """vLLM's weights are not the policy's."""


class VllmSampler:
    """`memory`: the share of the device's memory that vLLM may take;
    on the CPU, for its cache of keys and values.
    """

    def __init__(self, policy: Policy, *, memory: float = 0.4) -> None:
        if _engines:
            raise ModelError(
                "this process has a vLLM engine already, and can have one at a time; close() that first"
            )
        self.policy = policy
        self.sleeps = policy.device.type == "cuda"
        if self.sleeps:
            torch.cuda.empty_cache()  # vLLM counts what torch keeps in reserve as taken
        before = card.taken(policy.device)
        with _left_alone(policy.device):
            self.llm = _open(policy, memory)
            self.engine = self.llm.llm_engine
            try:
                self._draw([[0]], SamplingParams(), [0], [1], None)
            except Exception as error:  # sizes its kernels do not know show only when they run
                self.engine.engine_core.shutdown()
                raise _cannot_run(policy, error) from error
        self.context = min(policy.context, int(self.llm.model_config.max_model_len))
        if self.context < policy.context < 2**31 - 1:
            logging.getLogger(__name__).warning(
                "vLLM's memory holds %d tokens of one response, fewer than %s's context of %d; rollout.engine_memory "
                "gives it more",
                self.context,
                policy.name,
                policy.context,
            )
        _engines.add(self)
        self.held = card.taken(policy.device) - before
        if self.sleeps:
            self._sleep()

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
        finished: Finished | None = None,
    ) -> Rollouts:
        asked = request(self.policy, prompts, n, params, keys, step, finished)
        self._listed(params)  # refused before anything is woken
        longest = max(map(len, asked.prompts))
        if longest >= self.context:
            raise PromptTooLong(
                longest,
                f"a prompt of {longest} tokens does not fit the {self.context} tokens vLLM has room for; give it more "
                "with rollout.engine_memory",
            )
        seeds = (asked.keys & (2**63 - 1)).tolist()  # vLLM takes −1 for no seed at all
        rows = [asked.prompts[r // n] for r in range(asked.rows)]
        limits = [
            min(limit, self.context - len(row))
            for limit, row in zip(asked.limit.tolist(), rows, strict=True)
        ]
        with _left_alone(self.policy.device), self._awake():
            self._check_weights(asked.prompts[:PROBES])
            outputs = self._draw(rows, params, seeds, limits, finished)
        return self._rollouts(asked, outputs)

    def close(self) -> None:
        """Give the engine's memory back. A process can have one engine at a time."""
        self.engine.engine_core.shutdown()
        card.asleep(self.policy.device, 0)
        _engines.discard(self)

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        """With today's weights. The cache comes last:
        its memory is not there yet while the weights are copied.
        """
        try:
            if self.sleeps:
                torch.cuda.empty_cache()  # what the trainer keeps in reserve is what vLLM now needs
                card.asleep(self.policy.device, 0)
                self.llm.wake_up(tags=["weights"])
            self.llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": weights(self.policy)}
            )
            if self.sleeps:
                self.llm.wake_up(tags=["kv_cache"])
            if not self.llm.reset_prefix_cache():
                raise StaleEngine(
                    "vLLM did not forget keys and values of the old weights; use rollout.engine = native"
                )
            yield
        finally:
            if self.sleeps:
                self._sleep()

    def _sleep(self) -> None:
        """Its weights and its cache leave the card; torch goes on counting them."""
        self.llm.sleep(level=2)
        card.asleep(self.policy.device, self.held)

    def _check_weights(self, prompts: list[list[int]]) -> None:
        """Draw a few tokens and compare their log-probabilities with the trainer's."""
        limits = [min(PROBE_TOKENS, self.context - len(p)) for p in prompts]
        outputs = self._draw(prompts, SamplingParams(), list(range(len(prompts))), limits, None)
        tokens, logprobs, lengths, _ = self._flat(outputs)
        packed = pack(prompts, tokens, lengths, torch.arange(len(prompts), device=tokens.device))
        ours = token_logprobs(self.policy, packed).logprobs
        apart, allowed = float((ours - logprobs).abs().mean()), TOLERANCE[self.policy.dtype]
        if not apart <= allowed:
            raise StaleEngine(
                f"vLLM's log-probabilities are {apart:.3g} nats from the trainer's (mean of {len(tokens)} tokens; the "
                f"rule for {str(self.policy.dtype).removeprefix('torch.')} is at most {allowed:g}): it does not sample "
                f"from the weights it was sent, or computes {self.policy.name} in another way; use rollout.engine = "
                "native"
            )

    def _draw(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        seeds: Sequence[int],
        limits: Sequence[int],
        finished: Finished | None,
    ) -> list[Any]:
        """vLLM's outputs, one for each prompt; `finished` hears of each as soon as it has ended."""
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        listed = self._listed(params)
        outputs: dict[int, Any] = {}
        for row, (prompt, seed, limit) in enumerate(zip(prompts, seeds, limits, strict=True)):
            how = VllmParams(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                seed=seed,
                max_tokens=limit,
                stop=list(params.stop),
                detokenize=bool(params.stop),
                skip_special_tokens=False,
                spaces_between_special_tokens=False,
                stop_token_ids=list(self.policy.eos),
                ignore_eos=True,
                logprobs=listed,
                flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self.engine.add_request(str(row), {"type": "token", "prompt_token_ids": prompt}, how)
        try:
            while self.engine.has_unfinished_requests():
                done = {int(output.request_id): output.outputs[0] for output in self.engine.step()}
                outputs |= done
                if finished is not None and done:
                    tokens = [output.token_ids for output in done.values()]
                    lengths = torch.tensor([len(row) for row in tokens])
                    finished(list(done), torch.tensor(list(chain.from_iterable(tokens))), lengths)
        finally:
            self.engine.abort_request(
                [str(row) for row in range(len(prompts)) if row not in outputs]
            )
        return [outputs[row] for row in range(len(prompts))]

    def _listed(self, params: SamplingParams) -> int:
        """How many of the most likely tokens to ask for with each one drawn:
        enough to hold its whole support.
        """
        if not params.truncates:
            return 0
        vocabulary: int = self.policy.core.config.vocab_size
        if vocabulary <= MOST_TOP_K:
            return vocabulary
        if not 0 < params.top_k <= MOST_TOP_K:
            raise ModelError(
                f"top_k = {params.top_k} with top_p = {params.top_p} and min_p = {params.min_p}: vLLM tells what a "
                "token was drawn from as its n most likely tokens, and the ratios of training need all of them, so "
                f"top_k must be from 1 to {MOST_TOP_K} here; set it, or use rollout.engine = native"
            )
        return params.top_k + TIES

    def _flat(self, outputs: list[Any]) -> tuple[Tensor, Tensor, Tensor, Support | None]:
        """tokens [N], logprobs [N], lengths [B], and the support of truncated draws."""
        device = self.policy.device
        tokens = torch.tensor(
            list(chain.from_iterable(o.token_ids for o in outputs)), device=device
        )
        lengths = torch.tensor([len(o.token_ids) for o in outputs], device=device)
        entries = np.concatenate(
            [np.asarray(o.logprobs.logprobs, dtype=np.float32) for o in outputs]
        )
        if len(entries) == len(tokens):
            return tokens, torch.from_numpy(entries).to(device), lengths, None
        ids = np.concatenate([np.asarray(o.logprobs.token_ids, dtype=np.int32) for o in outputs])
        sizes = [np.subtract(o.logprobs.end_indices, o.logprobs.start_indices) for o in outputs]
        support, logprobs = _support(ids, entries, np.concatenate(sizes))
        return tokens, logprobs.to(device), lengths, Support(support.ids.to(device), support.starts)

    def _rollouts(self, asked: Request, outputs: list[Any]) -> Rollouts:
        tokens, logprobs, lengths, support = self._flat(outputs)
        prompt = torch.arange(len(asked.prompts), device=tokens.device).repeat_interleave(asked.n)
        finish: list[Finish] = [o.finish_reason for o in outputs]
        if set(finish) - {"stop", "length"}:
            raise ModelError(
                f"vLLM ended responses with {sorted(set(finish))}; must be stop or length"
            )
        return Rollouts(asked.prompts, tokens, logprobs, lengths, prompt, finish, support)


def _support(
    ids: NDArray[np.int32], logprobs: NDArray[np.float32], sizes: NDArray[np.int64]
) -> tuple[Support, Tensor]:
    """The supports and the log-probabilities over them [N], from vLLM's entries: `sizes` [N] of
    them for each token, first the one drawn, then the most likely, the one drawn perhaps among
    them; −∞ is outside.

    Log-probabilities are renormalised over what is listed. That changes nothing but rounding unless
    more than TIES tokens are as likely as the k-th: those left out count as if they could not have
    been drawn.
    """
    token = np.arange(len(sizes)).repeat(sizes)
    is_drawn = np.zeros(len(ids), dtype=bool)
    is_drawn[sizes.cumsum() - sizes] = True
    again = ~is_drawn & (ids == ids[is_drawn][token])
    kept = np.isfinite(logprobs) & ~again
    mass = np.bincount(token[kept], np.exp(logprobs[kept], dtype=np.float64), len(sizes))
    over = (logprobs[is_drawn] - np.log(mass)).astype(np.float32)
    count = np.bincount(token[kept], minlength=len(sizes))
    return Support.of(torch.from_numpy(ids[kept]), torch.from_numpy(count)), torch.from_numpy(over)


def weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Those of a plain model; a tied head comes under its own name as well,
    because vLLM has it apart.
    """
    return plain_weights(policy.core)


def _open(policy: Policy, memory: float) -> Any:
    """vLLM's engine for the policy's architecture, or a ModelError that says why there can be none."""
    if importlib.util.find_spec("vllm") is None:
        raise ModelError(
            'rollout.engine = "vllm" needs the package vllm: pip install "equipoise[vllm]"'
        )
    if policy.dtype not in TOLERANCE:
        raise ModelError(
            f"vLLM samples in float32 or bfloat16, not in {str(policy.dtype).removeprefix('torch.')}"
        )
    if policy.device.type == "cpu" and policy.dtype == torch.bfloat16 and not _cpu_has_bfloat16():
        raise ModelError(
            "vLLM needs instructions for bfloat16 that this CPU does not have; use model.dtype = float32"
        )
    if policy.device.index:
        raise ModelError(
            f"vLLM takes the first device it sees, not {policy.device}; set CUDA_VISIBLE_DEVICES instead"
        )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the weights are handed over in memory
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # vLLM reports to its makers unless told not to
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # the threads are the trainer's too
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with tempfile.TemporaryDirectory() as folder:
        from vllm import LLM
        from vllm.platforms import current_platform

        if current_platform.device_type != policy.device.type:
            raise ModelError(
                f"this vLLM runs on {current_platform.device_type}, the policy lies on {policy.device.type}; set "
                "model.device, or install vLLM for it"
            )
        _write_model(policy, folder)
        on_cpu = policy.device.type == "cpu"
        # On the CPU a prompt goes in whole: in parts, vLLM 0.32 turns a seeded request's generator
        # back, and fails.
        room = (
            {"kv_cache_memory_bytes": int(memory * _ram())}
            if on_cpu
            else {"gpu_memory_utilization": memory}
        )
        try:
            return LLM(
                model=folder,
                runner="generate",
                load_format="dummy",
                dtype=str(policy.dtype).removeprefix("torch."),
                max_model_len=-1,
                generation_config="vllm",
                logprobs_mode="processed_logprobs",
                max_logprobs=MOST_TOP_K + TIES,
                enforce_eager=on_cpu,
                enable_sleep_mode=not on_cpu,
                enable_chunked_prefill=not on_cpu,
                **room,
            )
        except Exception as error:  # a dozen unrelated types, pydantic's and torch's among them
            raise _cannot_run(policy, error) from error


def _cannot_run(policy: Policy, error: Exception) -> ModelError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ModelError(f"vLLM cannot run {policy.name}: {reason[:600]}; use rollout.engine = native")


def _write_model(policy: Policy, folder: str) -> None:
    """Configuration and tokenizer. The head is untied:
    vLLM does not pass new embeddings on to a head tied to them.
    """
    config = copy.deepcopy(policy.core.config)
    config.tie_word_embeddings = False
    # a model made in memory has none, and vLLM would guess
    config.architectures = [type(policy.core).__name__]
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _cpu_has_bfloat16() -> bool:
    """On ARM vLLM takes them for granted, and the process would die of an illegal instruction."""
    return platform.machine() != "aarch64" or "bf16" in Path("/proc/cpuinfo").read_text().split()


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def _left_alone(device: torch.device) -> Iterator[None]:
    """vLLM seeds and draws from the process's generators and, on the CPU, takes
    `torch.set_num_threads` away: put back what was there.
    """
    before = random.getstate(), np.random.get_state(), torch.set_num_threads
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_num_threads = before[2]
