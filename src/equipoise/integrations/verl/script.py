"""launch.sh of `equipoise export verl`: settings in hydra's grammar, each as one word of the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from equipoise.config import Config
from equipoise.integrations.launch import Setting, account, arguments
from equipoise.integrations.verl import on_cpu

# the sections of verl's configuration that hold most settings
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
HERE = "$HERE"  # the folder of launch.sh, in a setting's text
# What a launch needs besides: verl's defaults are for eight GPUs, and leave the sampler open.
FIXED: dict[str, Any] = {
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
}


def script(config: Config, found: Mapping[str, Setting]) -> str:
    """The text of launch.sh: verl's settings as overrides, under the account of what became of ours."""
    lines = "\n".join(f"#   {line}" for line in account(config, found))
    settings = {**FIXED, **arguments(found)}
    overrides = " \\\n".join(f"    {_quoted(name, value)}" for name, value in settings.items())
    of_cpu = config.model.device == "cpu"
    return f"""#!/usr/bin/env bash
# Train with verl as config.toml beside this file says; written by `equipoise export verl`.
#
#   GPUS=8 NODES=1 ./launch.sh      arguments are further overrides, for example trainer.total_training_steps=10
#
# What became of every option:
{lines}
set -euo pipefail
HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
OUT={shlex.quote(config.train.out)}

# What `equipoise report` reads. verl's file logger begins its file anew, so each start has one of its own.
mkdir -p "$OUT"
cp "$HERE/config.toml" "$OUT/config.toml"
METRICS="$OUT/verl-$(date -u +%Y%m%dT%H%M%SZ).jsonl"
{on_cpu.PREPARED if of_cpu else ""}
exec "${{PYTHON:-python3}}" -m verl.trainer.main_ppo \\
    trainer.n_gpus_per_node="${{GPUS:-1}}" trainer.nnodes="${{NODES:-1}}" \\
{overrides} \\
    "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH='$METRICS'" \\
    {on_cpu.WORDS if of_cpu else ""}"$@"
"""


def _quoted(name: str, value: Any) -> str:
    """An override as one word of the shell, in which $HERE alone is a variable."""
    word = re.sub(r'([\\"`$])', r"\\\1", f"{name}={_hydra(value)}")
    return '"' + word.replace("\\" + HERE, HERE) + '"'


def _hydra(value: Any) -> str:
    """A value in hydra's grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
