"""Functions with their backward passes written out, for speed and memory: `layers` what every layer
of the decoder calls, `head` the language-model head straight to log-probabilities or to an
objective's loss.

Each has a plain counterpart that the tests hold it to.
"""

from equipoise.kernels.head import fused_logprobs, fused_loss
from equipoise.kernels.layers import add_norm, gated, norm_rotate, rms_norm, rotate

__all__ = ["add_norm", "fused_logprobs", "fused_loss", "gated", "norm_rotate", "rms_norm", "rotate"]
