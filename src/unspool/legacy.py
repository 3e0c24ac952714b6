"""Streamers of transformers, fed from a stream."""

from __future__ import annotations

from typing import Any

import torch

from unspool.records import Event, Opening, Result, Step

__all__ = ["StreamerSink"]


class StreamerSink:
    """Makes the calls that `model.generate(streamer=...)` makes: the prompt, each token, and `end` once.

    `end` comes on every path, after errors too.

    Args:
        streamer: Anything with `put(ids)` and `end()`.
        prompt: Whether the prompt is put.
    """

    def __init__(self, streamer: Any, *, prompt: bool = True) -> None:
        self._streamer = streamer
        self._prompt = prompt

    def open(self, opening: Opening) -> None:
        """Puts the prompt."""
        self._run: list[torch.Tensor] | None = [] if opening.method == "assisted_generation" else None
        if self._prompt:
            self._streamer.put(opening.prompt_ids.cpu())

    def take(self, event: Event) -> None:
        """Puts the tokens of a step; those that assisted decoding takes at once, at once."""
        if not isinstance(event, Step):
            return
        if self._run is None:
            self._streamer.put(event.tokens.cpu())
            return
        self._run.append(event.tokens.cpu())
        if not event.more:
            self._streamer.put(torch.stack(self._run, dim=-1))
            self._run.clear()

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Ends the streamer."""
        self._streamer.end()
