# SPDX-License-Identifier: Apache-2.0
"""kt: mixture-of-experts inference, tuned by measurement. Pure Python over libkt.so."""

from ._native import Error, lib as _lib
from .engine import Chat, Engine, Sampler, Sequence, Tokenizer, machine, plan
from .moe import MoE, Team
from .tensors import Tensor, tensor

__version__ = _lib.kt_version().decode()
__all__ = ["Chat", "Engine", "Error", "MoE", "Sampler", "Sequence", "Team", "Tensor", "Tokenizer",
           "machine", "plan", "tensor"]
