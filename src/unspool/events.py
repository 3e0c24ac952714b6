"""Events beside steps, of models that do more than add one token after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["PAUSE", "Change", "Draft", "Frames", "Pause", "Phase", "Retract", "Segment"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the model begins its work: text before speech, coarse sound before fine.

    Attributes:
        name: Where the part is in the model, such as `"thinker"`.
        index: Its place among the phases, from 0.
    """

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of what was said, once it is certain.

    Attributes:
        row: The row of the batch.
        start: When it begins, in seconds from the start of the sound.
        end: When it ends, in seconds.
        ids: Its token ids, time marks included.
        window: The number of the window of sound that it was heard in, from 0.
        temperature: The temperature it was sampled at; 0 for greedy search.
    """

    row: int
    start: float
    end: float
    ids: tuple[int, ...]
    window: int = 0
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A block of text that may still be changed; each draft of a block replaces the one before it.

    Attributes:
        start: The position, prompt included, at which the block begins.
        ids: int64, `(rows, length)`: the block as it stands.
        round: How often the block has been revised, from 0.
    """

    start: int
    ids: torch.Tensor
    round: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of sound that a part of the model has made at once, not step by step.

    Attributes:
        frames: `(rows, codebooks or size, count)`: codes as int64, latents and spectrograms as floats.
    """

    frames: torch.Tensor


@dataclass(frozen=True, slots=True)
class Retract:
    """The latest steps are void: the stream was rewound, a token replaced, or a part of the sound is heard anew.

    Attributes:
        count: How many steps are void.
        index: The index of the first of them, and of the step that comes next.
        rows: The rows whose part in these steps is void, where others stay; the steps are then numbered on. None for
            all.
    """

    count: int
    index: int
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Other settings hold from the next step on.

    Attributes:
        config: All settings, as they are now.
        rows: The rows that they are for; None for all.
    """

    config: GenerationConfig
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing has happened; the run waits. Nobody but a stream sees it."""


PAUSE = Pause()
