"""From frames to samples, while frames are still being made.

A codec looks at the frames around the one it decodes. What it makes of the last few changes once there are more, so
samples are given out only when they won't; how far that reaches is measured on the codec itself, with the frames at
hand. So the pieces, joined, are what decoding everything at once gives, and there are no clicks at the seams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unspool.errors import ArgumentError
from unspool.events import Frames
from unspool.families.frames import FrameStep
from unspool.families.registry import family_of
from unspool.families.voice import Voice
from unspool.records import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

__all__ = ["SampleChunk", "SoundReader", "samples", "voice_of"]

_PROBE = 8  # frames, from which on the reach of a codec is measured
_SAME = 1e-5  # of the loudest sample: what counts as no change


@dataclass(frozen=True, slots=True)
class SampleChunk:
    """A piece of the sound of all rows.

    Attributes:
        start: How many samples came before.
        samples: float32 `(rows, channels, count)`.
        sampling_rate: Samples per second.
        lengths: For each row, how many samples of the whole sound so far are its own; what comes after is filled up.
    """

    start: int
    samples: torch.Tensor
    sampling_rate: int
    lengths: tuple[int, ...]


def voice_of(
    model: PreTrainedModel | None,
    decode: Callable[[torch.Tensor], torch.Tensor] | None,
    sampling_rate: int | None,
) -> Voice:
    """What makes sound of frames: what is given, or else the codec of the model.

    Raises:
        ArgumentError: There is neither, or the sampling rate isn't known.
    """
    own = None if model is None else family_of(model).voice(model)
    if decode is None and own is None:
        name = "Without a model," if model is None else f"{type(model).__name__} has no codec of its own;"
        raise ArgumentError(f"{name} pass decode=, which makes samples of frames, and sampling_rate=.")
    rate = sampling_rate if sampling_rate is not None else None if own is None else own.sampling_rate
    if rate is None:
        raise ArgumentError("sampling_rate= is missing: the samples per second that decode= gives.")
    if decode is None:
        assert own is not None  # one of them is there
        decode = own.decode
    return Voice(decode, rate)


class SoundReader:
    """Makes samples of the frames of a stream.

    Args:
        voice: What makes sound of frames.
        chunk: Seconds of sound to gather before it is decoded.
        context: How many of the frames before are decoded again with those that are new. None, the default, is all of
            them, which is exact for every codec; a number is faster for long sounds and exact if it covers all that the
            codec looks back to, which one with a recurrent layer does without end.

    Raises:
        ArgumentError: `chunk` or `context` is negative.
    """

    def __init__(self, voice: Voice, *, chunk: float = 1.0, context: int | None = None) -> None:
        if chunk < 0:
            raise ArgumentError(f"chunk={chunk!r} is no number of seconds; 0 or more would do.")
        if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 0):
            raise ArgumentError(f"context={context!r} is no number of frames; 0 or more, or None for all, would do.")
        self._voice, self._chunk, self._context = voice, chunk, context
        self._frames: list[torch.Tensor] = []
        self._count = self._decoded = self._given = 0
        self._reach: int | None = None
        self._hop = 0
        self._lengths: torch.Tensor | None = None

    def take(self, event: Event) -> list[SampleChunk]:
        """The samples that an event makes certain."""
        frames = event.frames if isinstance(event, (FrameStep, Frames)) else None
        if frames is None or not frames.shape[-1]:
            return []
        sounding = event.sounding if isinstance(event, FrameStep) else None
        own = torch.ones(frames.shape[0], dtype=torch.bool) if sounding is None else sounding.cpu()
        held = torch.zeros(frames.shape[0], dtype=torch.long) if self._lengths is None else self._lengths
        self._lengths = held + own * frames.shape[-1]
        self._frames.append(frames)
        self._count += frames.shape[-1]
        due = _PROBE if not self._hop else max(1, round(self._chunk * self._voice.sampling_rate / self._hop))
        return self._decode(last=False) if self._count - self._decoded >= due else []

    def finish(self) -> list[SampleChunk]:
        """The rest."""
        return self._decode(last=True) if self._count else []

    @torch.no_grad()
    def _decode(self, *, last: bool) -> list[SampleChunk]:
        frames = torch.cat(self._frames, dim=-1)
        self._frames = [frames]
        first = 0 if self._context is None or not self._hop else max(0, self._given // self._hop - self._context)
        made = self._voice.decode(frames[..., first:])
        if not self._hop:
            self._hop = max(1, made.shape[-1] // self._count)
        if self._reach is None and not last:
            self._reach = self._measured(frames, made)
        self._decoded = self._count
        if self._reach is None and not last:
            return []
        offset = first * self._hop
        stop = offset + made.shape[-1] - (0 if last else self._reach or 0)
        if stop <= self._given:
            return []
        piece = made[..., self._given - offset : stop - offset].float().cpu()
        chunk = SampleChunk(self._given, piece, self._voice.sampling_rate, self._own(stop, last))
        self._given = stop
        return [chunk]

    def _measured(self, frames: torch.Tensor, made: torch.Tensor) -> int | None:
        """How many of the last samples change once there are more frames; None if that isn't certain yet."""
        reach, loudest = 0, float(made.abs().max())
        for fewer in (1, 2, 3):
            before = self._voice.decode(frames[..., :-fewer])
            same = (before - made[..., : before.shape[-1]]).abs().flatten(0, -2).amax(0) <= _SAME * loudest
            first = int((~same).float().argmax()) if not bool(same.all()) else same.shape[0]
            reach = max(reach, same.shape[0] - first)
        return reach if reach <= made.shape[-1] // 2 else None

    def _own(self, stop: int, last: bool) -> tuple[int, ...]:
        assert self._lengths is not None  # there are frames
        return tuple(
            stop if length == self._count and last else min(stop, length * self._hop)
            for length in self._lengths.tolist()
        )


def samples(
    events: Iterable[Event],
    model: PreTrainedModel | None = None,
    *,
    decode: Callable[[torch.Tensor], torch.Tensor] | None = None,
    sampling_rate: int | None = None,
    chunk: float = 1.0,
    context: int | None = None,
) -> Iterator[SampleChunk]:
    """The sound of a stream, piece by piece, while it is being made.

    Args:
        events: A stream, or its events.
        model: The model, whose codec is used.
        decode: Makes samples `(rows, channels, length)` of frames `(rows, codebooks or size, count)`, where the model
            has no codec of its own, such as a vocoder.
        sampling_rate: Samples per second of what `decode` gives.
        chunk: Seconds of sound to gather before it is decoded.
        context: As for `SoundReader`.

    Raises:
        ArgumentError: There is nothing that makes sound of frames.
    """
    reader = SoundReader(voice_of(model, decode, sampling_rate), chunk=chunk, context=context)
    source: Any = events.events() if hasattr(events, "events") else events
    return _read(source, reader)


def _read(events: Iterable[Event], reader: SoundReader) -> Iterator[SampleChunk]:
    for event in events:
        yield from reader.take(event)
    yield from reader.finish()
