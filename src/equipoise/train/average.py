"""The mean of the weights of a run's last checkpoints, as one more model in Hugging Face format.

A uniform mean over the end of training (Izmailov et al., arXiv 1803.05407; a "soup" of one run's
checkpoints) costs nothing while the run goes on and can be taken afterwards; an exponential one
would hold a second model in memory. Sums are made in float32, one tensor at a time. With LoRA the
merged weights are averaged: the mean of the products is not the product of the means. Not covered:
whether it is better, which `equipoise eval` says.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from equipoise.train.checkpoint import STATE, SUMS
from equipoise.train.folder import RunError

LEFT_OUT = (STATE, SUMS, "adapter")  # of the trainer, and of one checkpoint alone


def average(checkpoints: Sequence[Path], out: Path) -> None:
    """Write the mean of these checkpoints into `out`, whole or not at all;
    files beside the weights are the last's.
    """
    temporary = out.with_name(f".writing-{out.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    last = checkpoints[-1]
    shutil.copytree(last, temporary, ignore=shutil.ignore_patterns(*LEFT_OUT, "*.safetensors"))
    for file in sorted(last.glob("*.safetensors")):
        _average_file([folder / file.name for folder in checkpoints], temporary / file.name)
    shutil.rmtree(out, ignore_errors=True)
    temporary.rename(out)


def _average_file(files: Sequence[Path], out: Path) -> None:
    from safetensors.torch import load_file, save_file

    total: dict[str, Tensor] = {}
    kinds = {}
    for file in files:
        weights = load_file(file) if file.is_file() else {}
        if total and weights.keys() != total.keys():
            raise RunError(
                f"{file}: must hold the same weights as {files[0]}, to be averaged with them"
            )
        for name, tensor in weights.items():
            kinds[name] = tensor.dtype
            # The sum is taken in float32: bfloat16 would lose what checkpoints differ by.
            total[name] = tensor.float() + total[name] if name in total else tensor.float()
    mean = {}
    for name, tensor in total.items():
        mean[name] = (tensor / len(files)).to(kinds[name])
    save_file(mean, out, metadata={"format": "pt"})
