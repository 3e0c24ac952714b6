"""Streamers of transformers, fed from a stream."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from unspool.errors import ArgumentError
from unspool.records import Event, Opening, Result, Step
from unspool.sinks.base import Sink

__all__ = ["StreamerSink", "sink_of"]

_ADVICE = (
    "streamer= is how transformers streamed, and is kept for that. Sinks see more: pass "
    "`sinks=[TextSink(tokenizer=tokenizer)]` (unspool.sinks), or iterate `generate_stream(...).text(tokenizer)`."
)
_warned = False


def sink_of(streamer: Any, *, prompt: bool = True) -> Sink:
    """A streamer as a sink. Warns once that there is something better.

    Args:
        streamer: A streamer of transformers, of a user's own, or of this package; the last are sinks themselves.
        prompt: Whether the prompt is put.

    Raises:
        ArgumentError: It is no streamer.
    """
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(_ADVICE, DeprecationWarning, stacklevel=4)
    if all(callable(getattr(streamer, name, None)) for name in ("open", "take", "close")):
        given: Sink = streamer
        return given
    missing = [name for name in ("put", "end") if not callable(getattr(streamer, name, None))]
    if missing:
        raise ArgumentError(f"streamer={streamer!r} is no streamer: it has no {' and no '.join(missing)}.")
    return StreamerSink(streamer, prompt=prompt)


class StreamerSink:
    """Makes the calls that `model.generate(streamer=...)` makes: the prompt, each token, and `end` once.

    `end` comes on every path, after errors too. Under beams, which transformers refuses, the first sequence returned
    for each prompt is put: a position as soon as it is certain for all prompts.

    Args:
        streamer: Anything with `put(ids)` and `end()`.
        prompt: Whether the prompt is put.
    """

    def __init__(self, streamer: Any, *, prompt: bool = True) -> None:
        self._streamer = streamer
        self._prompt = prompt
        self._beams: _Settled | None = None

    def open(self, opening: Opening) -> None:
        """Puts the prompt."""
        self._run: list[torch.Tensor] | None = [] if opening.method == "assisted_generation" else None
        ids = opening.prompt_ids
        if (opening.config.num_beams or 1) > 1:
            ids = ids[:: opening.rows_per_prompt]
            self._beams = _Settled(ids.shape[1])
        if self._prompt:
            self._streamer.put(ids.cpu())

    def take(self, event: Event) -> None:
        """Puts the tokens of a step; those that assisted decoding takes at once, at once."""
        if not isinstance(event, Step):
            return
        if event.beams is not None and self._beams is not None:
            for tokens in self._beams.next(event.beams.agreed):
                self._streamer.put(tokens)
        elif self._run is None:
            self._streamer.put(event.tokens.cpu())
        else:
            self._run.append(event.tokens.cpu())
            if not event.more:
                self._streamer.put(torch.stack(self._run, dim=-1))
                self._run.clear()

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Puts what is certain only now, and ends the streamer."""
        try:
            if self._beams is not None and result is not None and error is None:
                each = result.sequences.shape[0] // self._beams.prompts if self._beams.prompts else 1
                for tokens in self._beams.next(result.sequences[::each].tolist()):
                    self._streamer.put(tokens)
        finally:
            self._streamer.end()


class _Settled:
    """How far the first sequences of all prompts are certain."""

    def __init__(self, start: int) -> None:
        self._done = start
        self.prompts = 0

    def next(self, certain: Any) -> list[torch.Tensor]:
        """The tokens `(prompts,)` of each position that is certain by now and wasn't before."""
        self.prompts = len(certain)
        stop = min(len(ids) for ids in certain)
        made = [torch.tensor([ids[at] for ids in certain]) for at in range(self._done, stop)]
        self._done = max(self._done, stop)
        return made
