"""Bark: meaning, then coarse sound, then fine sound, by three models in a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from unspool.events import Frames, Phase
from unspool.families.decoder_only import DecoderOnly
from unspool.families.listener import Listener
from unspool.families.voice import Voice
from unspool.records import Event, Opening

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from unspool.plan import Request

__all__ = ["Bark"]

_FINE = "fine_acoustics"


class Bark(DecoderOnly):
    """The steps are the tokens of meaning and of coarse sound; what is fine is filled in at once, as `Frames`."""

    name: ClassVar[str] = "bark"
    around_own_loop: ClassVar[bool] = True

    def listener(self, request: Request) -> Listener:
        """What hears when the last model begins, and what it gives."""
        return _Phases(request)

    def voice(self, model: PreTrainedModel) -> Voice | None:
        """The codec."""
        whole: Any = model
        return Voice(lambda frames: whole.codec_decode(frames)[:, None], whole.generation_config.sample_rate)


class _Phases(Listener):
    taps: ClassVar[tuple[str, ...]] = (f"{_FINE}.generate",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._begun = 0

    def begins(self, opening: Opening) -> Iterable[Event]:
        """One of the first two begins."""
        self._begun += 1
        return ()

    def before(self, name: str, given: Mapping[str, Any]) -> Iterable[Event]:
        """The last one begins."""
        return (Phase(_FINE, 2),)

    def after(self, name: str, given: Mapping[str, Any], made: Any) -> Iterable[Event]:
        """It has filled in all codebooks."""
        return (Frames(made),)
