"""Our rollout inside verl and the CPU among its platforms, without Ray: the server's coroutines, the registries."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("verl")

import verl
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

from equipoise.integrations.verl import cpu, rollout
from equipoise.policy.names import ABACUS

ASKED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
PROMPTS = ["12+34=", "5+6=", "44+8+4="]


def server(**options):
    told = {"model": str(ABACUS), "dtype": "float32", "seed": 3, "replica_rank": 0, "lengths": (32, 24)}
    return rollout.Server(**{**told, **options})


def ids(text):
    return AutoTokenizer.from_pretrained(ABACUS)(text)["input_ids"]


def answers(made, prompts, **options):
    """What a server answers to requests that come at once."""

    async def asked():
        each = (made.generate(ids(text), {**ASKED, **options}, request_id=str(i)) for i, text in enumerate(prompts))
        return await asyncio.gather(*each)

    return asyncio.run(asked())


def plain(model, prompt, tokens, temperature=1.0):
    """The log-probabilities of a response by transformers alone."""
    both = torch.tensor([[*prompt, *tokens]])
    logits = model(both).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, both[0, len(prompt) :, None])[:, 0]


def test_verl_finds_the_rollout_by_its_name():
    assert RolloutReplicaRegistry.get("equipoise") is rollout.Replica
    assert get_rollout_class("equipoise") is rollout.Adapter


def test_a_response_comes_with_the_probabilities_it_was_drawn_with():
    model = AutoModelForCausalLM.from_pretrained(ABACUS, dtype=torch.float32)
    for text, found in zip(PROMPTS, answers(server(), PROMPTS, temperature=0.7), strict=True):
        expected = plain(model, ids(text), found.token_ids, 0.7)
        assert 1 <= len(found.token_ids) <= 24
        assert torch.allclose(torch.tensor(found.log_probs), expected, atol=2e-5)


def test_draws_repeat_whatever_arrives_with_them():
    """A run that is resumed draws what it would have drawn: the others in the batch and their order change nothing."""
    together = answers(server(), PROMPTS)
    apart = [answers(server(), [text])[0] for text in reversed(PROMPTS)]
    assert [a.token_ids for a in together] == [a.token_ids for a in reversed(apart)]


def test_a_group_is_not_one_response_repeated():
    of_group = {tuple(a.token_ids) for a in answers(server(), ["12+34="] * 16, temperature=2.0)}
    assert len(of_group) > 8
    elsewhere = {tuple(a.token_ids) for a in answers(server(replica_rank=1), ["12+34="] * 16, temperature=2.0)}
    seeded = {tuple(a.token_ids) for a in answers(server(seed=4), ["12+34="] * 16, temperature=2.0)}
    assert len(of_group & elsewhere) < 8
    assert len(of_group & seeded) < 8


def test_it_samples_from_the_weights_it_was_sent():
    made = server()
    model = AutoModelForCausalLM.from_pretrained(ABACUS, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    asyncio.run(made.update(dict(model.state_dict()), 7))
    (found,) = answers(made, PROMPTS[:1])
    assert found.extra_fields["global_steps"] == 7
    assert torch.allclose(torch.tensor(found.log_probs), plain(model, ids(PROMPTS[0]), found.token_ids), atol=2e-5)
    part = dict(list(model.state_dict().items())[1:])
    with pytest.raises(ValueError, match="embed_tokens"):
        asyncio.run(made.update(part, 8))


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="repetition_penalty"):
        answers(server(), PROMPTS[:1], repetition_penalty=1.2)
    with pytest.raises(ValueError, match="text alone"):
        asyncio.run(server().generate(ids("1+1="), ASKED, "0", image_data=[object()]))


def test_a_failed_draw_reaches_every_caller():
    """A prompt that fills the context fails with its batch; the server then goes on."""
    made = server(lengths=(10**6, 8))
    with pytest.raises(ValueError, match="context"):
        answers(made, ["1" * 10_000])
    assert answers(made, PROMPTS[:1])[0].token_ids


@pytest.mark.parametrize("asked", ["cpu", None])
def test_the_cpu_is_a_platform_for_those_who_ask_for_it(asked):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")}
    if asked:
        environment["VERL_PLATFORM"] = asked
    code = "import verl; from verl.plugin.platform import get_platform; print(get_platform().device_name)"
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = ran.stdout.split()[-1]
    assert (found == "cpu") == (asked == "cpu")


def test_every_call_that_verl_makes_of_a_device_is_answered():
    """A name that is missing stops a run in its middle: at a checkpoint, at a resume."""
    folder = Path(verl.__file__).parent
    files = [folder / "workers" / "engine_workers.py", folder / "single_controller" / "base" / "worker.py"]
    for part in ("workers/engine/fsdp", "utils/checkpoint", "trainer/ppo"):
        files += (folder / part).rglob("*.py")
    calls = {name for file in files for name in re.findall(r"get_torch_device\(\)\.(\w+)", file.read_text())}
    assert "set_rng_state" in calls
    assert not [name for name in calls if not hasattr(cpu.Cpu().device_module, name)]
