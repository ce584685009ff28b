"""Each engine's own loss code on the batch of the matrix: a function of an objective's name and the batch.

An engine is imported where its column is made. What an engine imports beside its loss and is not installed (a tracker,
DeepSpeed, Megatron's parallel state) is replaced by a stand-in; the loss itself never is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_batch import WIDTH, Batch, G, NotRun, Refused, flat, folded, objective_of, padded_gradient
from equipoise.objective import response_ids


def equipoise_split(name: str, batch: Batch) -> Tensor:
    """Ours again, over micro-batches of whole groups: what an engine of ours would add up."""
    objective = objective_of(name)
    credit = objective.assign(batch.reward, torch.tensor(batch.group), batch.lengths, tokens=flat(batch.tokens, batch))
    logp = flat(batch.logp, batch).clone().requires_grad_()
    response = response_ids(batch.lengths, len(logp))
    position = torch.cat([torch.arange(int(n)) for n in batch.lengths])
    for first in range(0, len(batch.group), 2 * G):
        here = (response >= first) & (response < first + 2 * G)
        part = objective.loss(logp[here], flat(batch.old, batch)[here], credit, response[here], position=position[here])
        part.loss.backward()
    assert logp.grad is not None
    return logp.grad


def verl(name: str, batch: Batch) -> Tensor:
    """Its `get_policy_loss_fn` and `agg_loss`: its own loss where it has the surrogate, else ours in its registry."""
    import numpy as np
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    from equipoise.integrations.verl import plugin

    choices = objective_of(name).choices()
    try:
        plugin.objective_of(choices)
    except ValueError as error:
        raise Refused(str(error).removeprefix("algorithm.equipoise: ")) from error
    token_rewards = torch.zeros_like(batch.logp)
    token_rewards[torch.arange(len(batch.group)), batch.lengths - 1] = batch.reward
    options = OmegaConf.create({"equipoise": choices})
    index = np.array([str(g) for g in batch.group])
    advantages, _ = plugin.estimate(token_rewards, batch.mask, index, options)
    policy = plugin.PolicyLoss(loss_mode="equipoise", equipoise=choices)
    config = ActorConfig(
        strategy="fsdp", rollout_n=G, ppo_micro_batch_size_per_gpu=1, policy_loss=policy,
        loss_agg_mode="seq-mean-token-sum",
    )  # fmt: skip
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(batch.mask.sum()), global_batch_size=len(batch.group)
    )

    def loss(logp: Tensor) -> Tensor:
        call = get_policy_loss_fn("equipoise")
        return call(batch.old, logp, advantages, batch.mask, "seq-mean-token-sum", config)[0]

    return padded_gradient(batch, loss)


def verl_own(name: str, batch: Batch) -> Tensor:
    """The same coefficients through a policy loss of verl's own."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    objective, c = folded(name, batch, "verl")
    options = objective.choices()["surrogate"]
    kinds = {"ppo_clip": "vanilla", "dual_clip": "vanilla", "gspo": "gspo", "cispo": "cispo", "dppo": "dppo_tv",
             "reinforce": "gpg"}  # fmt: skip
    mode = kinds.get(options["name"])
    if mode is None:
        raise Refused("no loss of its own for this surrogate that keeps a folded weight")
    cap = options.get("cap", 1e6)  # ppo_clip has no third clip
    low, high = (1.0, cap - 1) if mode == "cispo" else (options.get("low", 0.2), options.get("high", 0.2))
    config = ActorConfig(
        strategy="fsdp", rollout_n=G, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(loss_mode=mode),
        loss_agg_mode="seq-mean-token-sum", clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=cap,
    )  # fmt: skip
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(batch.mask.sum()), global_batch_size=len(batch.group)
    )
    advantages = (c * len(batch.group))[:, None] * batch.mask
    call = get_policy_loss_fn(mode)
    return padded_gradient(
        batch, lambda logp: call(batch.old, logp, advantages, batch.mask, "seq-mean-token-sum", config)[0]
    )


def trl_own(name: str, batch: Batch) -> Tensor:
    """The coefficients through TRL's own `_compute_loss`, by its loss type."""
    from unittest import mock

    from trl import GRPOTrainer

    if objective_of(name).cancellation == "prefix":
        raise NotRun("TRL's loss takes an advantage for each token, which was not tried with its own losses")
    objective, c = folded(name, batch, "TRL")
    options = objective.choices()["surrogate"]
    host, inputs = trl_host(GRPOTrainer, batch)
    kind, rows, tokens = options["name"], len(batch.group), float(batch.mask.sum())
    scale = torch.full((rows,), float(rows * WIDTH))  # dr_grpo: what TRL divides a sum by
    if kind in ("ppo_clip", "gspo"):
        host.epsilon_low, host.epsilon_high = options["low"], options["high"]
        host.importance_sampling_level = "sequence" if kind == "gspo" else "token"
    elif kind in ("cispo", "vespo"):
        host.loss_type, scale = kind, torch.full((rows,), tokens)
        host.epsilon_high = options.get("cap", 0.2)
    elif kind == "sapo":  # a mean over each response's tokens
        host.loss_type, scale = kind, rows * batch.lengths.double()
    else:
        raise Refused("no loss of its own for this surrogate")
    for sign in ("positive", "negative"):
        short = sign[:3]
        setattr(host.args, f"sapo_temperature_{short}", options.get(f"tau_{sign}", 1.0))
        setattr(host.args, f"vespo_k_{short}", options.get(f"k_{sign}", 1.0))
        setattr(host.args, f"vespo_lambda_{short}", options.get(f"lam_{sign}", 1.0))
    inputs["advantages"] = c * scale

    def loss(logp: Tensor) -> Tensor:
        made = (logp, torch.zeros_like(logp), None)
        with mock.patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", return_value=made):
            return host._compute_loss(None, inputs)

    return padded_gradient(batch, loss)


def trl_host(kind: type, batch: Batch) -> tuple[Any, dict[str, Any]]:
    """A trainer of this class with what `_compute_loss` reads, and the inputs of the batch."""
    host = object.__new__(kind)
    args = SimpleNamespace(steps_per_generation=1, delta=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.0)
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    host.__dict__ |= {
        "args": args, "accelerator": accelerator, "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)}, "aux_loss_enabled": False, "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None, "importance_sampling_level": "token", "beta": 0.0, "loss_type": "dr_grpo",
        "use_vllm": False, "current_gradient_accumulation_steps": 1, "max_completion_length": WIDTH,
        "_entropy_bonus_enabled": False, "epsilon_low": 0.2, "epsilon_high": 0.2, "tools": None,
    }  # fmt: skip
    ones = torch.ones(len(batch.group), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ones, "prompt_mask": ones, "completion_ids": batch.tokens, "completion_mask": batch.mask.long(),
        "advantages": torch.ones(len(batch.group), dtype=batch.logp.dtype), "old_per_token_logps": batch.old,
        "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    return host, inputs


def trl(name: str, batch: Batch) -> Tensor:
    """Our trainer's `_compute_loss` over TRL's, on an instance that was given its batch by hand."""
    from unittest import mock

    from trl import GRPOTrainer

    from equipoise.integrations.trl import plugin

    objective = objective_of(name)
    host, inputs = trl_host(plugin.EquipoiseGRPOTrainer, batch)
    host.objective = objective
    host._credit = objective.assign(
        batch.reward, torch.tensor(batch.group), batch.lengths, tokens=flat(batch.tokens, batch)
    )
    inputs[plugin.ROW] = torch.arange(len(batch.group))

    def loss(logp: Tensor) -> Tensor:
        made = (logp, torch.zeros_like(logp), None)
        with mock.patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", return_value=made):
            return host._compute_loss(None, inputs)

    return padded_gradient(batch, loss)


def skyrl(name: str, batch: Batch) -> Tensor:
    """Its registries and its reduction of advantages, mini-batch by mini-batch, with its own `regular`, `dual_clip`,
    `gspo`, `cispo` or `sapo` where the surrogate is the same, else ours in its registry."""
    _typed_dict()
    from skyrl.backends.skyrl_train.utils import ppo_utils

    from equipoise.integrations.skyrl import plugin

    objective, _ = folded(name, batch, "SkyRL")
    for registry in (ppo_utils.AdvantageEstimatorRegistry, ppo_utils.PolicyLossRegistry):
        registry._functions.pop("equipoise", None)
    plugin.register(objective, max_seq_len=WIDTH)
    token_rewards = torch.zeros_like(batch.logp)
    token_rewards[torch.arange(len(batch.group)), batch.lengths - 1] = batch.reward
    config = SimpleNamespace(loss_reduction=plugin.REDUCTION, max_seq_len=WIDTH)
    advantages, _ = ppo_utils.compute_advantages_and_returns(
        token_rewards, batch.mask.to(batch.logp.dtype), batch.group, "equipoise", config
    )
    loss_fn = ppo_utils.PolicyLossRegistry.get("equipoise")
    half = len(batch.group) // 2

    def loss(logp: Tensor) -> Tensor:
        total = torch.zeros((), dtype=logp.dtype)
        for rows in (slice(0, half), slice(half, None)):  # two mini-batches: their mean is the batch's loss
            mask = batch.mask[rows].to(logp.dtype)
            scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
                advantages[rows], mask, config.loss_reduction, 1, WIDTH
            )
            total = total + loss_fn(logp[rows], batch.old[rows], scaled, config, mask)[0] / 2
        return total

    return padded_gradient(batch, loss)


def skyrl_own(name: str, batch: Batch) -> Tensor:
    """The same coefficients through a loss of SkyRL's own."""
    _typed_dict()
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import AlgorithmConfig

    objective, c = folded(name, batch, "SkyRL")
    config = AlgorithmConfig()
    options = objective.choices()["surrogate"]
    kind = options["name"]
    if kind == "dppo":
        raise NotRun("SkyRL has a dppo of its own, which was not compared")
    types = {"ppo_clip": "regular", "dual_clip": "dual_clip", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo"}
    if kind not in types:
        raise Refused("no loss of its own for this surrogate")
    config.policy_loss_type = types[kind]
    if kind in ("ppo_clip", "dual_clip", "gspo"):
        config.eps_clip_low, config.eps_clip_high = options["low"], options["high"]
    if kind == "cispo":
        config.cispo.cispo_eps_clip_low, config.cispo.cispo_eps_clip_high = 1.0, options["cap"] - 1
    if kind == "sapo":
        config.sapo.tau_pos, config.sapo.tau_neg = options["tau_positive"], options["tau_negative"]
        config.loss_reduction = "sequence_mean"
    mask = batch.mask.to(batch.logp.dtype)
    loss_fn = ppo_utils.PolicyLossRegistry.get(types[kind])
    return padded_gradient(batch, lambda logp: loss_fn(logp, batch.old, c[:, None].expand_as(logp), config, mask)[0])


def _typed_dict() -> None:
    """SkyRL is written for Python 3.12: pydantic wants this TypedDict before."""
    import typing

    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]


def openrlhf(name: str, batch: Batch) -> Tensor:
    """Its `PolicyLoss` with token-mean aggregation, the coefficients times the batch's tokens as advantages."""
    _stand_ins("deepspeed")
    _without_init("openrlhf", "models")
    from openrlhf.models.loss import PolicyLoss

    objective, c = folded(name, batch, "OpenRLHF")
    options = objective.choices()["surrogate"]
    tokens = float(batch.mask.sum())
    if options["name"] == "ppo_clip":
        call = PolicyLoss(options["low"], options["high"])
    elif options["name"] == "dual_clip":
        call = PolicyLoss(options["low"], options["high"], dual_clip=options["cap"])
    elif options["name"] == "gspo":
        # Its GSPO is a mean over each response's tokens, so the coefficient is taken times the length.
        call = PolicyLoss(options["low"], options["high"], policy_loss_type="gspo")
        c = c * batch.lengths / tokens * len(batch.group)
    else:
        raise Refused("no loss of its own for this surrogate, and no hook for one")
    mask = batch.mask.to(batch.logp.dtype)
    advantages = (c * tokens)[:, None].expand_as(batch.logp)
    rows = float(len(batch.group))

    def loss(logp: Tensor) -> Tensor:
        made = call(logp, batch.old, advantages, mask, batch_num_tokens=tokens, global_batch_size=rows)
        return made[0]

    return padded_gradient(batch, loss)


def _stand_ins(*packages: str) -> None:
    """Empty modules for packages that an engine imports beside its loss and that are not here."""
    import importlib.util
    import sys
    from unittest import mock

    for package in packages:
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            sys.modules[package] = mock.MagicMock()


def _without_init(package: str, inner: str) -> None:
    """Let modules of package.inner be imported without its __init__, which asks for GPU packages."""
    import importlib
    import sys
    import types

    name = f"{package}.{inner}"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = [str(Path(folder) / inner) for folder in importlib.import_module(package).__path__]
        sys.modules[name] = module


def prime_rl(name: str, batch: Batch) -> Tensor:
    """Its `compute_loss` with our custom loss, sequence by sequence, on the advantages its GRPO makes."""
    _stand_ins("wandb")
    from prime_rl.configs.trainer import CustomLossConfig
    from prime_rl.trainer.rl import loss as host

    objective = objective_of(name)
    choices = objective.choices()
    wanted = {"surrogate": choices["surrogate"], "aggregation": choices["aggregation"]}
    if choices["advantage"]["name"] != "dr_grpo":
        raise Refused("its orchestrator makes the advantages, r − μ; other advantages have no hook")
    if choices["difficulty"]["name"] != "none" or choices["cancellation"] != "none":
        raise Refused("its loss sees one sequence: difficulty and cancellation have no hook")
    kwargs: dict[str, Any] = wanted
    if choices["aggregation"]["name"] != "token":
        kwargs = wanted | {"length": 8.0}  # a guess at the mean length, as a user has to make
    config = CustomLossConfig(import_path="equipoise.integrations.prime_rl.plugin.loss", kwargs=kwargs)
    reward = batch.reward.reshape(-1, G)
    advantage = (reward - reward.mean(1, keepdim=True)).reshape(-1)

    def loss(logp: Tensor) -> Tensor:
        rows = range(len(batch.group))
        keep = [batch.mask[i] for i in rows]
        try:
            return host.compute_loss(
                [logp[i] for i in rows], [batch.old[i] for i in rows], None,
                [advantage[i].expand(WIDTH) for i in rows], keep, None, None, None,
                host.setup_rl_loss_fn(config), int(batch.mask.sum()), 1, 1,
            )[0]  # fmt: skip
        except ValueError as error:
            raise Refused(str(error)) from error

    return padded_gradient(batch, loss)


def slime(name: str, batch: Batch) -> Tensor:
    """Its `policy_loss_function` with our reward post-processing and reducer; Megatron's parallel state is one rank."""
    import os

    from equipoise.integrations.slime import plugin

    _one_rank_of_megatron()
    from slime.backends.megatron_utils import loss as host
    from slime.utils.types import Sample

    objective, _ = folded(name, batch, "slime")
    choices = objective.choices()
    options = choices["surrogate"]
    estimators = {"ppo_clip": "grpo", "dual_clip": "grpo", "gspo": "gspo", "cispo": "cispo"}
    if options["name"] not in estimators:
        raise NotRun("no loss of its own for this surrogate; its custom_loss hook was not tried")
    low, high = (1.0, options["cap"] - 1) if options["name"] == "cispo" else (options["low"], options["high"])
    path = "equipoise.integrations.slime.plugin.reducer"
    args = SimpleNamespace(
        advantage_estimator=estimators[options["name"]], eps_clip=low, eps_clip_high=high,
        eps_clip_c=options.get("cap") if options["name"] == "dual_clip" else None, use_rollout_logprobs=False,
        use_opsm=False, get_mismatch_metrics=False, use_tis=False, custom_pg_loss_reducer_function_path=path,
        calculate_per_token_loss=False, entropy_coef=0.0, use_kl_loss=False, reward_key=None, rollout_top_p=1.0,
        normalize_advantages=False, context_parallel_size=1,
    )  # fmt: skip
    lengths = batch.lengths.tolist()
    samples = [
        Sample(group_index=batch.group[i], reward=float(batch.reward[i]), response_length=n)
        for i, n in enumerate(lengths)
    ]
    os.environ[plugin.VARIABLE] = json.dumps({"preset": "grpo", **choices})
    plugin.objective_of.cache_clear()
    _, made = plugin.rewards(args, samples)
    rows = len(samples)

    def loss(logp: Tensor) -> Tensor:
        new = [logp[i, :n] for i, n in enumerate(lengths)]
        host.get_log_probs_and_entropy = lambda *a, **k: (None, {"log_probs": new, "entropy": [x * 0 for x in new]})
        data = {
            "advantages": [torch.full((n,), made[i], dtype=logp.dtype) for i, n in enumerate(lengths)],
            "log_probs": [batch.old[i, :n] for i, n in enumerate(lengths)],
            "response_lengths": lengths, "total_lengths": [n + 1 for n in lengths], "unconcat_tokens": None,
            "loss_masks": [torch.ones(n, dtype=logp.dtype) for n in lengths],
        }  # fmt: skip
        means = host.get_sum_of_sample_mean(data["total_lengths"], lengths, data["loss_masks"])
        # One step of all rows: slime multiplies by its micro-batches and divides by the step's samples.
        return host.policy_loss_function(args, data, logp, means)[0] / rows

    return padded_gradient(batch, loss)


def _one_rank_of_megatron() -> None:
    """megatron.core's parallel state, of which slime's loss asks sizes and ranks alone."""
    import sys
    import types

    if "megatron" in sys.modules:
        return
    package, core, mpu = (types.ModuleType(n) for n in ("megatron", "megatron.core", "megatron.core.mpu"))
    for what in ("context_parallel", "tensor_model_parallel", "data_parallel", "pipeline_model_parallel"):
        setattr(mpu, f"get_{what}_world_size", lambda **_: 1)
        setattr(mpu, f"get_{what}_rank", lambda **_: 0)
        setattr(mpu, f"get_{what}_group", lambda **_: None)
    core.mpu = mpu  # type: ignore[attr-defined]
    package.core = core  # type: ignore[attr-defined]
    sys.modules |= {"megatron": package, "megatron.core": core, "megatron.core.mpu": mpu}


def tinker(name: str, batch: Batch) -> Tensor:
    """The real client's `forward_backward_custom` on a server in this process; its weights are the gradient."""
    from benchmarks.tinker_server import Server
    from equipoise.integrations.tinker import plugin

    server = Server(batch)
    try:
        plugin.forward_backward(server.client, objective_of(name), **server.arguments()).result()
    except ValueError as error:
        raise Refused(str(error)) from error
    return server.gradient()


# What an exact cell leaves unsaid.
NOTES = {
    ("TRL", "dfpo"): "with nothing split: the plug-in refuses it wherever TRL would shuffle a group into micro-batches",
}

ENGINES: dict[str, tuple[str, Callable[[str, Batch], Tensor]]] = {
    "equipoise": ("equipoise", equipoise_split),
    "TRL": ("trl", trl),
    "TRL's own losses": ("trl", trl_own),
    "verl": ("verl", verl),
    "verl's own losses": ("verl", verl_own),
    "SkyRL": ("skyrl", skyrl),
    "SkyRL's own losses": ("skyrl", skyrl_own),
    "OpenRLHF": ("openrlhf", openrlhf),
    "prime-rl": ("prime-rl", prime_rl),
    "slime": ("slime", slime),
    "Tinker": ("tinker", tinker),
}
