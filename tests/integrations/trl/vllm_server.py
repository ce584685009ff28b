"""vLLM's HTTP endpoints as TRL's client calls them, over a transformers model on the CPU.

`served(monkeypatch, model)` starts the server in a thread and lets TRL believe that vLLM is installed. Everything of
TRL's runs as it is: `VLLMGeneration`, `VLLMClient.generate`, `update_named_params` with its announcement of names,
dtypes and shapes. One thing is replaced: the tensors themselves go through a queue where TRL broadcasts them by NCCL,
which needs a CUDA device on both sides (`VLLMClient.init_communicator` refuses any other).

Not covered: vLLM itself, its scheduler and numerics; images; tensor parallelism.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from trl.generation import vllm_client, vllm_generation

Drawn = tuple[list[int], list[float]]  # a response's tokens and their log-probabilities
SERVER_INFO = {"weight_transfer_config": {"backend": "nccl"}, "model_config": {"logprobs_mode": "processed_logprobs"}}


class Engine:
    """The model behind the endpoints: draws responses, takes weights. `draw` in place of sampling, where given."""

    def __init__(self, model: str, draw: Callable[[int, int], Drawn] | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.draw = draw
        self.tensors: queue.Queue[tuple[str, torch.Tensor]] = queue.Queue()  # in NCCL's place
        self.calls: list[str] = []
        self.updating = False

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        """/v1/completions with prompts of token ids: n choices for each prompt, prompt after prompt."""
        assert not self.updating, "asked for responses while its weights change"
        choices = []
        for number, prompt in enumerate(request["prompt"]):
            if self.draw is None:
                drawn = self.sample(prompt, request)
            else:
                drawn = [self.draw(number, k) for k in range(request["n"])]
            choices += [self.choice(prompt, tokens, logprobs) for tokens, logprobs in drawn]
        return {"choices": choices}

    def choice(self, prompt: list[int], tokens: list[int], logprobs: list[float]) -> dict[str, Any]:
        names = [f"token_id:{token}" for token in tokens]
        table = {"tokens": names, "token_logprobs": logprobs, "top_logprobs": [None] * len(names)}
        return {"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": table}

    @torch.no_grad()
    def sample(self, prompt: list[int], request: dict[str, Any]) -> list[Drawn]:
        assert (request["top_p"], request["top_k"], request["min_p"]) == (1.0, 0, 0.0), "whole vocabulary alone"
        end = self.model.generation_config.eos_token_id
        out = self.model.generate(
            torch.tensor([prompt]), do_sample=True, num_return_sequences=request["n"], top_k=0, pad_token_id=end,
            temperature=request["temperature"], max_new_tokens=request["max_tokens"], output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        rows = out.sequences[:, len(prompt) :].tolist()
        scores = torch.stack(out.scores, 1).log_softmax(-1)
        drawn = []
        for row, score in zip(rows, scores, strict=True):
            tokens = row[: row.index(end) + 1] if end in row else row
            drawn.append((tokens, score[range(len(tokens)), tokens].tolist()))
        return drawn

    def load(self, announced: dict[str, Any]) -> dict[str, Any]:
        """/update_weights: as many tensors as were announced, each as it was announced."""
        assert self.updating, "/update_weights without /start_weight_update"
        own = dict(self.model.named_parameters())
        for name, dtype, shape in zip(announced["names"], announced["dtype_names"], announced["shapes"], strict=True):
            sent, tensor = self.tensors.get(timeout=60)
            assert (sent, str(tensor.dtype), list(tensor.shape)) == (name, f"torch.{dtype}", shape)
            own[name].data.copy_(tensor)
        return {}

    def update(self, starts: bool) -> dict[str, Any]:
        self.updating = starts
        return {}


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    got = {
        "/health": dict,
        "/v1/models": lambda: {"data": [{"id": "served"}]},
        "/server_info": lambda: {"vllm_config": SERVER_INFO},
        "/get_world_size": lambda: {"world_size": 1},
    }
    posted = {
        "/v1/completions": engine.complete,
        "/start_weight_update": lambda body: engine.update(True),
        "/update_weights": lambda body: engine.load(body["update_info"]),
        "/finish_weight_update": lambda body: engine.update(False),
        "/reset_prefix_cache": lambda body: {"success": True},
    }

    class Handler(BaseHTTPRequestHandler):
        def answer(self, value: dict[str, Any]) -> None:
            text = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self.answer(got[self.path.partition("?")[0]]())

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            engine.calls.append(self.path)
            self.answer(posted[self.path](json.loads(text or "{}")))

        def log_message(self, *arguments: Any) -> None:
            """Nothing on the terminal."""

    return Handler


def without_nccl(patch: Any, engine: Engine) -> None:
    """TRL as if vLLM were installed, with the engine's queue where NCCL would broadcast."""

    class Transfer:
        @staticmethod
        def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
            for name, tensor in iterator:
                engine.tensors.put((name, tensor.detach().clone()))

    for module in (vllm_client, vllm_generation):
        patch.setattr(module, "is_vllm_available", lambda *arguments, **options: True)
    patch.setattr(vllm_client, "NCCLWeightTransferEngine", Transfer, raising=False)
    patch.setattr(vllm_client, "NCCLTrainerSendWeightsArgs", dict, raising=False)
    patch.setattr(vllm_client, "get_ip", lambda: "127.0.0.1", raising=False)
    patch.setattr(vllm_client.VLLMClient, "init_communicator", lambda self, device: None)


@contextmanager
def served(patch: Any, model: str, draw: Callable[[int, int], Drawn] | None = None) -> Iterator[tuple[Engine, str]]:
    """The engine and the address of its server."""
    engine = Engine(model, draw)
    without_nccl(patch, engine)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(engine))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
