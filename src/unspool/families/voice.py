"""How frames become sound: the codec or vocoder of a kind of model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Voice"]


@dataclass(frozen=True, slots=True)
class Voice:
    """What makes samples of frames.

    Attributes:
        decode: Takes frames, `(rows, codebooks or size, count)`, and gives samples, `(rows, channels, length)`.
        sampling_rate: Samples per second.
    """

    decode: Callable[[torch.Tensor], torch.Tensor]
    sampling_rate: int
