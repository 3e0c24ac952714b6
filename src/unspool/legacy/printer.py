"""transformers' `TextStreamer`, on a text sink."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from unspool.detokenize import detokenizer_for, plain_tokenizer
from unspool.records import Event, Finish, FinishReason, Opening, Result, TextChunk
from unspool.row_text import RowText, StopStrings
from unspool.sinks.text import TextSink

__all__ = ["TextStreamer"]


class TextStreamer(BaseStreamer):
    """Prints text as it becomes certain: a drop-in for the class of that name in transformers.

    It is a sink, so it takes batches, samples and beams, the rows labelled; and a streamer still, which
    `model.generate()` of transformers can be given. What differs: text comes as soon as it is certain instead of word
    by word, and stop strings are never shown.

    Args:
        tokenizer: The model's tokenizer.
        skip_prompt: Whether the prompt is left out.
        **decode_kwargs: `skip_special_tokens`, as in `tokenizer.decode`; the others have no effect on text in pieces.

    Example:
        >>> from unspool import generate
        >>> streamer = TextStreamer(tiny_tokenizer(), skip_prompt=True)
        >>> ids = generate(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3, sinks=[streamer])
        <start> w106 w49
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        self.skip_prompt = skip_prompt
        self.decode_kwargs = decode_kwargs
        self._skip_special = bool(decode_kwargs.get("skip_special_tokens", False))
        self._sink: TextSink | None = None
        self._rows: list[RowText] | None = None
        self._labels: TextSink | None = None

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints text that is certain; ends the line at the end of the stream."""
        print(text, flush=True, end="" if not stream_end else None)

    # ------------------------------------------------------------------------------------------- as a sink

    def open(self, opening: Opening) -> None:
        """Begins a stream."""
        self._sink = TextSink(
            _Calls(self),  # type: ignore[arg-type]
            tokenizer=self.tokenizer,
            skip_special_tokens=self._skip_special,
            skip_prompt=self.skip_prompt,
            end="",
        )
        self._sink.open(opening)

    def take(self, event: Event) -> None:
        """Passes on the text of an event."""
        assert self._sink is not None  # `open` came first
        self._sink.take(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Passes on the rest, and ends the stream."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close(result, error)
        self.on_finalized_text("", stream_end=True)

    # --------------------------------------------------------------------- as a streamer of transformers

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, `(rows, length)`, then tokens: `(rows,)`, or `(1, count)` of accepted drafts."""
        value = value.cpu()
        if self._rows is None:
            rows = value if value.ndim > 1 else value[None]
            self._begin(rows)
            if not self.skip_prompt:
                self._print_prompt(rows)
            return
        drafted = value.ndim > 1 and len(self._rows) == 1
        for tokens in value[0][:, None] if drafted else [value.flatten()]:
            for row, token in zip(self._rows, tokens.tolist(), strict=True):
                self._pass_on(row.push(token, float("nan")))

    def end(self) -> None:
        """Passes on the rest, and ends the stream."""
        for row in self._rows or ():
            self._pass_on(row.end(Finish(FinishReason.STOPPED)))
        self._rows = self._labels = None
        self.on_finalized_text("", stream_end=True)

    def _begin(self, prompts: torch.Tensor) -> None:
        make = detokenizer_for(self.tokenizer, skip_special_tokens=self._skip_special)
        self._rows = [RowText((row, row, 0), make(), StopStrings(())) for row in range(len(prompts))]
        self._labels = TextSink(_Calls(self), tokenizer=self.tokenizer, end="")  # type: ignore[arg-type]
        self._labels.open(Opening(prompts, 1, GenerationConfig()))

    def _print_prompt(self, prompts: torch.Tensor) -> None:
        assert self._rows is not None  # `_begin` has made them
        if len(self._rows) == 1:
            self.on_finalized_text(self._rows[0].begin(prompts[0].tolist()))
            return
        plain = plain_tokenizer(self.tokenizer)
        for ids in prompts.tolist():
            self.on_finalized_text(plain.decode(ids, skip_special_tokens=self._skip_special) + "\n")

    def _pass_on(self, chunk: TextChunk | None) -> None:
        if chunk is not None and self._labels is not None:
            self._labels.write(chunk)


class _Calls:
    """A file whose text goes to a streamer's `on_finalized_text`."""

    def __init__(self, streamer: TextStreamer) -> None:
        self._streamer = streamer

    def write(self, text: str) -> None:
        self._streamer.on_finalized_text(text)

    def flush(self) -> None:
        """Does nothing: each call is passed on at once."""
