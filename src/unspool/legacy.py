"""Streamers of transformers, fed from a stream."""

from __future__ import annotations

from typing import Any

from unspool.records import Event, Opening, Result, Step

__all__ = ["StreamerSink"]


class StreamerSink:
    """Makes the calls that `model.generate(streamer=...)` makes: the prompt, each token, and `end` once.

    `end` comes on every path, after errors too.

    Args:
        streamer: Anything with `put(ids)` and `end()`.
    """

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer

    def open(self, opening: Opening) -> None:
        """Puts the prompt."""
        self._streamer.put(opening.prompt_ids.cpu())

    def take(self, event: Event) -> None:
        """Puts the tokens of a step."""
        if isinstance(event, Step):
            self._streamer.put(event.tokens.cpu())

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Ends the streamer."""
        self._streamer.end()
