"""Text for slow consumers: fewer, longer pieces."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unspool.errors import ArgumentError
from unspool.records import Event, Finish, FinishReason, Opening, Result, TextChunk
from unspool.text import TextStream

__all__ = ["ThrottleSink"]


class ThrottleSink:
    """Calls a function with text, at most once in so many seconds for each row, and loses none.

    What comes in between is joined: text, ids and log-probabilities. The last piece of a row, with its `finish`, comes
    at once.

    Args:
        function: What to call with a `TextChunk`.
        seconds: How long to wait after a call before the next.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        skip_special_tokens: Whether special tokens have no text.
        clock: Tells the time in seconds.

    Raises:
        ArgumentError: `seconds` is negative.

    Example:
        >>> from unspool import generate_stream
        >>> sink = ThrottleSink(lambda chunk: print(repr(chunk.text)), 60, tokenizer=tiny_tokenizer())
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4).to(sink)
        '<start>'
        ' w106 w49 w106'
    """

    def __init__(
        self,
        function: Callable[[TextChunk], Any],
        seconds: float,
        *,
        tokenizer: Any = None,
        skip_special_tokens: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if seconds < 0:
            raise ArgumentError(f"seconds={seconds!r} is no time to wait; 0 or more would do.")
        self._function, self._seconds, self._clock = function, seconds, clock
        self._tokenizer, self._skip_special = tokenizer, skip_special_tokens
        self._text: TextStream | None = None
        self._waiting: dict[int, TextChunk] = {}
        self._last: dict[int, float] = {}

    def open(self, opening: Opening) -> None:
        """Finds the tokenizer.

        Raises:
            ArgumentError: There is none.
        """
        tokenizer = self._tokenizer if self._tokenizer is not None else opening.tokenizer
        if tokenizer is None:
            raise ArgumentError("ThrottleSink needs the model's tokenizer; pass it to it or to the call.")
        self._text = TextStream(opening, tokenizer, skip_special_tokens=self._skip_special)

    def take(self, event: Event) -> None:
        """Passes on what is due."""
        assert self._text is not None  # `open` came first
        for chunk in self._text.take(event):
            self._add(chunk)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Passes on the rest."""
        if self._text is None:
            return
        for chunk in self._text.finish(None if result is None else result.finishes, Finish(FinishReason.ERROR, error)):
            self._add(chunk)

    def _add(self, chunk: TextChunk) -> None:
        held, now = self._waiting.pop(chunk.row, None), self._clock()
        whole = chunk if held is None else _joined(held, chunk)
        due = now - self._last.get(chunk.row, -float("inf")) >= self._seconds
        if due or chunk.finish is not None:
            self._last[chunk.row] = now
            self._function(whole)
        else:
            self._waiting[chunk.row] = whole


def _joined(first: TextChunk, second: TextChunk) -> TextChunk:
    return replace(
        second,
        text=first.text + second.text,
        ids=first.ids + second.ids,
        logprobs=first.logprobs + second.logprobs,
    )
