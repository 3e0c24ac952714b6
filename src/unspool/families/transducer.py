"""Transducers: tokens with the time at which they were heard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unspool import bridge
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.families.listener import Listener
from unspool.records import Event, Opening, Step

if TYPE_CHECKING:
    from unspool.plan import Request

__all__ = ["Transducer", "TransducerStep"]

_SECONDS = 0.01  # from one column of the features to the next


@dataclass(frozen=True, slots=True)
class TransducerStep(Step):
    """A step of a transducer: a token, or a blank, which only moves on in the sound (Graves, 2012, arXiv:1211.3711).

    Attributes:
        frame: int64 `(rows,)`: the frame of the encoder at which it was emitted.
        duration: int64 `(rows,)`: how many frames it moves on.
        seconds: float64 `(rows,)`: when that is, in seconds from the start of the sound, with features of 10 ms.
        blank: bool `(rows,)`: the rows that emitted no token.
    """

    frame: torch.Tensor | None = None
    duration: torch.Tensor | None = None
    seconds: torch.Tensor | None = None
    blank: torch.Tensor | None = None


class Transducer(EncoderDecoder):
    """Parakeet, by RNN-T or TDT (Xu et al., 2023, arXiv:2304.06795), and Nemotron's speech recognition."""

    name: ClassVar[str] = "transducer"
    step: ClassVar[type[Step]] = TransducerStep
    around_own_loop: ClassVar[bool] = True
    keeps_on_model: ClassVar[bool] = True

    def listener(self, request: Request) -> Listener:
        """What hears how far in the sound a step has come."""
        return _Frames(request)


class _Frames(Listener):
    taps: ClassVar[tuple[str, ...]] = (bridge.UPDATE,)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        config: Any = request.model.config
        self._blank = config.blank_token_id
        self._seconds = config.encoder_config.subsampling_factor * _SECONDS
        self._frame: Any = None
        self._next: Any = None

    def after(self, name: str, given: Mapping[str, Any], made: Any) -> Iterable[Event]:
        """A forward has been taken in: how far it moves on is known."""
        now = made["encoder_frame_idxs"]
        self._frame = torch.zeros_like(now) if self._next is None else self._next
        self._next = now
        return ()

    def opening(self, opening: Opening) -> Opening:
        """Says that blanks have no text."""
        return replace(opening, silent=(self._blank,))

    def shown(self, event: Event) -> Event:
        """A step with its place in the sound."""
        event = super().shown(event)
        if not isinstance(event, Step):
            return event
        given: dict[str, Any] = {name: getattr(event, name) for name in Step.__dataclass_fields__}
        return TransducerStep(
            **given,
            frame=self._frame,
            duration=self._next - self._frame,
            seconds=self._frame.double() * self._seconds,
            blank=event.tokens == self._blank,
        )
