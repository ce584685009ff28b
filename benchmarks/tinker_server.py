"""A server of the Tinker protocol in this process, for one batch: what the published losses say, on leaf tensors.

The client is tinker's own `TrainingClient`, with its chunking and `forward_backward_custom`; only what it would
send over HTTP is answered here. Per datum: `logprobs` of the targets; losses are sums over positions of

    cross_entropy −logp·weights        ppo −min(ρA, clip(ρ)A)        cispo −sg(clip(ρ))·A·logp

and their gradients add up in `grad` of the log-probabilities, which stand for the model.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from tinker import types
from tinker.lib.public_interfaces import training_client
from torch import Tensor


class Done:
    """A future that is there already."""

    def __init__(self, result: Any) -> None:
        self.value = result

    async def result_async(self, timeout: float | None = None) -> Any:
        return self.value

    def result(self, timeout: float | None = None) -> Any:
        return self.value


class Server:
    """Log-probabilities of one batch as leaves, and the client that reaches them."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.lengths = batch.lengths.tolist()
        self.logp = [batch.logp[i, :n].float().clone().requires_grad_() for i, n in enumerate(self.lengths)]
        self.losses: list[str] = []
        self.client = self._client()

    def arguments(self) -> dict[str, Any]:
        """What the adapter needs of the batch. A prompt names its row, so that a datum finds its leaf."""
        rows = range(len(self.lengths))
        return {
            "prompts": [[1000 + i, 7] for i in rows],
            "responses": [self.batch.tokens[i, :n].tolist() for i, n in enumerate(self.lengths)],
            "logprobs": [self.batch.old[i, :n].tolist() for i, n in enumerate(self.lengths)],
            "rewards": self.batch.reward.tolist(),
            "groups": self.batch.group,
        }

    def gradient(self) -> Tensor:
        parts = [torch.zeros_like(lp) if lp.grad is None else lp.grad for lp in self.logp]
        return torch.cat(parts).double()

    def answer(self, data: list[Any], name: str, config: dict[str, float] | None, backward: bool) -> Any:
        """ForwardBackwardOutput of a request."""
        self.losses.append(name)
        outputs, total = [], torch.zeros(())
        for datum in data:
            row = datum.model_input.to_ints()[0] - 1000
            # The prompt's one other target has a log-probability too, of which nothing depends.
            logp = torch.cat([torch.full((1,), -1.0), self.logp[row]])
            inputs = {k: v.to_torch() for k, v in datum.loss_fn_inputs.items()}
            total = total + _loss(name, logp, inputs, config or {})
            outputs.append({"logprobs": types.TensorData.from_torch(logp.detach())})
        if backward:
            total.backward()
        return types.ForwardBackwardOutput(
            loss_fn_output_type="", loss_fn_outputs=outputs, metrics={"loss:sum": float(total.detach())}
        )

    def _client(self) -> Any:
        server = self

        class Local(training_client.TrainingClient):
            """tinker's client, with the wire cut right after its own preparation of a request."""

            def _run_fwd_bwd(self, data: Any, loss_fn: Any, loss_fn_config: Any, *, forward_only: bool) -> Any:
                chunks = [chunk for chunk, _ in self._chunked_requests_generator(data)]
                parts = [server.answer(chunk, loss_fn, loss_fn_config, not forward_only) for chunk in chunks]
                combined = training_client.combine_fwd_bwd_output_results(parts)
                return Done(combined)

        return Local(_holder(), 0, "model")


def _loss(name: str, logp: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    if name == "cross_entropy":
        return -(logp * inputs["weights"]).sum()
    ratio = (logp - inputs["logprobs"]).exp()
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    A = inputs["advantages"]
    if name == "ppo":
        return -torch.minimum(ratio * A, ratio.clamp(low, high) * A).sum()
    if name == "cispo":
        return -(ratio.clamp(low, high).detach() * A * logp).sum()
    raise ValueError(f"{name} is not a loss this server has")


def _holder() -> Any:
    """What the client asks of its holder: an event loop in a thread, and the sizes of its chunks."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    @contextmanager
    def no_client(*_: Any) -> Any:
        raise AssertionError("nothing goes over the network here")
        yield

    @asynccontextmanager
    async def unlimited(*_: Any) -> Any:
        yield

    return SimpleNamespace(
        run_coroutine_threadsafe=lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop),
        _client_config=SimpleNamespace(
            fwdbwd_max_chunk_bytes_count=2_000, fwdbwd_max_chunk_len=5, parallel_fwdbwd_chunks=False
        ),
        aclient=no_client, fwdbwd_dispatch_rate_limit=unlimited, get_session_id=lambda: "session",
    )  # fmt: skip
