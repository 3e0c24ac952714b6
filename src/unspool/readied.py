"""What has been read before its step is made: the prompt, or a fork's part in a forward over several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unspool import bridge
from unspool import cache as caches
from unspool.books import Books

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

    from unspool.families.carry import Carry

__all__ = ["Readied"]


class Readied(Books):
    """The outputs that wait for the next step. A base of `DecodingState`."""

    carry: Carry | None
    steps: int
    forwards: int
    width: int
    _ready: ModelOutput | None

    def ready(self) -> ModelOutput | None:
        """The outputs of the prompt that wait for the first step."""
        return self._ready

    def give_ready(self, outputs: ModelOutput | None) -> None:
        """Puts others in their place."""
        self._ready = outputs

    def waits_like(self, other: Readied) -> bool:
        """Whether the next forward of this is to be made, at the same step and for as many rows."""
        alive = self.carry is not None and self.running and self._ready is None
        return alive and self.steps == other.steps and self.ids.shape == other.ids.shape

    def take_part(self, outputs: ModelOutput, width: int) -> None:
        """Takes its part in a forward that was made for several."""
        self._ready, self.width = outputs, width
        self.forwards += 1

    def unread(self) -> None:
        """Gives back what was read beforehand of the last token, which is to be another."""
        if self.steps and self._ready is not None and self.carry is not None:
            caches.crop(self.carry.cache, 1)
            self._ready = None
            self.forwards -= 1

    def ready_outputs(self) -> ModelOutput | None:
        """The outputs of the prompt that wait for the first step, if they hold nothing large."""
        light = {*bridge.STATE_NAMES, "logits", "encoder_last_hidden_state"}
        return self._ready if self._ready is not None and set(self._ready) <= light else None

    def hold_again(self, outputs: ModelOutput | None, width: int) -> None:
        """Puts back what waited for the first step; without outputs, that reads the last position again."""
        self._ready, self.width = outputs, width
