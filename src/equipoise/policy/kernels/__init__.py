"""Functions with their backward passes written out, for speed and memory: `layers` what every layer of the decoder
calls, `head` the language-model head straight to log-probabilities or to an objective's loss.

Each has a plain counterpart that the tests hold it to.
"""

from equipoise.policy.kernels.head import fused_logprobs, fused_loss
from equipoise.policy.kernels.layers import rms_norm, rotate, swiglu

__all__ = ["fused_logprobs", "fused_loss", "rms_norm", "rotate", "swiglu"]
