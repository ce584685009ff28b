"""A rollout for verl with our own sampler: `actor_rollout_ref.rollout.name=equipoise`.

One server (a Ray actor) stands beside each of verl's workers and holds a copy of the model; the worker sends it the
weights after every update, through Ray's object store. Requests that arrive together are decoded together. The draws of
the k-th request for a prompt under one version of the weights depend on rollout.seed, the server, the version, the
prompt and k, and on nothing else: a run on one worker can be repeated, and resumed, draw for draw.

Made for CPUs, where verl has no rollout of its own (it has vLLM, SGLang and TensorRT-LLM). Not covered: tensor
parallelism, images, asynchronous trainers (nothing is interrupted), LoRA unless merged, continuous batching.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from equipoise.policy import load
from equipoise.rollout import SamplingParams, sampler

NAME = "equipoise"
GATHER = 0.02  # seconds in which requests that belong together arrive
DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def server_name(replica_rank: int) -> str:
    return f"{NAME}_server_{replica_rank}"


class _Waiting(NamedTuple):
    prompt: tuple[int, ...]
    key: str  # of its draws
    params: SamplingParams
    answer: asyncio.Future[TokenOutput]


class Server:
    """The actor that samples. `generate` is what verl's agent loops call, `update` what its worker does."""

    def __init__(
        self, *, model: str, dtype: str, seed: int, replica_rank: int, lengths: tuple[int, int]
    ) -> None:
        self.policy = load(model, dtype=DTYPES[dtype])
        self.sampler = sampler(self.policy)
        self.seed = seed
        self.replica_rank = replica_rank
        self.prompt_length, self.response_length = lengths
        self.version = 0
        # requests for each prompt, under the weights of today
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.waiting: list[_Waiting] = []
        self.at_work: asyncio.Task[None] | None = None

    async def update(self, weights: dict[str, Tensor], version: int) -> None:
        """Sample from these weights from now on."""
        missing, unknown = self.policy.core.load_state_dict(weights, strict=False)
        tied = {"lm_head.weight"} if self.policy.core.config.tie_word_embeddings else set()
        if unknown or set(missing) - tied:
            raise ValueError(
                f"{self.policy.name}: the worker sent {unknown} besides its weights, and not {missing}"
            )
        self.version = version
        self.asked.clear()

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
    ) -> TokenOutput:
        """One response, with the log-probabilities it was drawn with."""
        if image_data or video_data:
            raise ValueError(f"rollout.name={NAME} reads text alone; use vllm for images")
        prompt = tuple(prompt_ids)
        key = f"{self.replica_rank} {self.asked[prompt]} {prompt}"
        self.asked[prompt] += 1
        answer: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self.waiting.append(_Waiting(prompt, key, self._params(prompt, sampling_params), answer))
        if self.at_work is None or self.at_work.done():
            self.at_work = asyncio.create_task(self._work())
        return await answer

    def _params(self, prompt: tuple[int, ...], asked: dict[str, Any]) -> SamplingParams:
        if asked.get("repetition_penalty", 1.0) != 1.0:
            raise ValueError(
                f"rollout.name={NAME} has no repetition_penalty; set it to 1, or use vllm"
            )
        room = min(self.response_length, self.prompt_length + self.response_length - len(prompt))
        return SamplingParams(
            temperature=asked["temperature"],
            top_p=asked["top_p"],
            top_k=max(asked["top_k"], 0),  # verl's −1 keeps all
            max_tokens=max(1, min(asked.get("max_tokens", room), room)),
            seed=self.seed,
        )

    async def _work(self) -> None:
        """Decode what waits, all that has the same settings at once, until nothing does."""
        await asyncio.sleep(GATHER)
        while self.waiting:
            params = self.waiting[0].params
            batch = [one for one in self.waiting if one.params == params]
            self.waiting = [one for one in self.waiting if one.params != params]
            try:
                outputs = await asyncio.to_thread(self._draw, batch, params)
            except (
                Exception
            ) as error:  # each request has its own caller, and all of them must hear of it
                for one in batch:
                    one.answer.set_exception(error)
                continue
            for one, output in zip(batch, outputs, strict=True):
                one.answer.set_result(output)

    def _draw(self, batch: list[_Waiting], params: SamplingParams) -> list[TokenOutput]:
        prompts, keys = [one.prompt for one in batch], [one.key for one in batch]
        drawn = self.sampler.sample(prompts, 1, params, keys=keys, step=self.version)
        lengths = drawn.lengths.tolist()
        return [
            TokenOutput(
                token_ids=tokens.tolist(),
                log_probs=logprobs.tolist(),
                stop_reason="completed",
                extra_fields={"global_steps": self.version},
            )
            for tokens, logprobs in zip(
                drawn.tokens.split(lengths), drawn.logprobs.split(lengths), strict=True
            )
        ]


class Replica(RolloutReplica):
    """The driver's side: start the server on the node of its worker. There is no memory to give back between phases."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"rollout.name={NAME} has one process for each copy of the model, not {self.world_size}: set "
                "rollout.tensor_model_parallel_size, data_parallel_size and pipeline_model_parallel_size to 1"
            )
        (worker,) = self.workers
        node = await worker.__ray_call__.remote(
            lambda self: ray.get_runtime_context().get_node_id()
        )
        here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        named = {"name": server_name(self.replica_rank), "max_concurrency": self.max_concurrency}
        server = ray.remote(Server).options(scheduling_strategy=here, num_cpus=0, **named)
        handle = server.remote(
            model=self.model_config.path,
            dtype=self.config.dtype,
            seed=self.config.seed,
            replica_rank=self.replica_rank,
            lengths=(self.config.prompt_length, self.config.response_length),
        )
        self.servers = [handle]
        self._server_handle = handle
        # verl's name for it; there is no HTTP
        self._server_address = server_name(self.replica_rank)

    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...


class Adapter(BaseRollout):
    """The worker's side: it sends the weights."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank

    async def resume(self, tags: Iterable[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        base_sync_done: bool = True,
    ) -> None:
        if wire_format != "named_tensors" or peft_config is not None:
            what = "an adapter" if peft_config is not None else f"weights as {wire_format}"
            raise ValueError(
                f"rollout.name={NAME} takes whole weights, not {what}: set model.lora.merge=True"
            )
        # The worker may change its tensors while Ray still sends them, so it gets copies.
        found = {
            name: tensor.detach().cpu().clone()
            async for name, tensor in ensure_async_iterator(weights)
        }
        server = ray.get_actor(server_name(self.replica_rank))
        await server.update.remote(found, global_steps or 0)
