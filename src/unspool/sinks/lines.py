"""Sinks that write a record a line or a block: what JSONL and server-sent events share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Literal, TextIO

from unspool.detokenize import plain_tokenizer
from unspool.errors import ArgumentError
from unspool.records import Event, Finish, FinishReason, Opening, Result, TextChunk
from unspool.text import TextStream
from unspool.wire import Wire

__all__ = ["RecordWriter"]


class RecordWriter(ABC):
    """Writes what happens as records of plain data.

    Args:
        file: Where to write.
        tokenizer: The model's tokenizer, for text; by default the one that the call was given, where text is asked for.
        records: `"steps"`: one a step; with a tokenizer it has the text that the step makes certain, as `text`.
            `"text"`: one for each piece of text.
        fields: Which fields of a step to tell.
        top_logprobs: How many of the likeliest tokens to tell for each row of a step.
        skip_special_tokens: Whether special tokens have no text.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        tokenizer: Any = None,
        records: Literal["steps", "text"] = "steps",
        fields: Collection[str] | None = None,
        top_logprobs: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        if records not in ("steps", "text"):
            raise ArgumentError(f"records={records!r} is no kind of record; 'steps' or 'text' would do.")
        self.file = file
        self._records, self._skip_special = records, skip_special_tokens
        self._tokenizer, self._fields, self._top = tokenizer, fields, top_logprobs
        self._text: TextStream | None = None
        self._wire = Wire(fields, top_logprobs, None if tokenizer is None else plain_tokenizer(tokenizer))

    @abstractmethod
    def write(self, record: dict[str, Any]) -> None:
        """Writes a record; its `type` is start, prefill, step, text, end or error."""

    def open(self, opening: Opening) -> None:
        """Writes what the run begins with.

        Raises:
            ArgumentError: Text is asked for, and there is no tokenizer.
        """
        tokenizer = self._tokenizer
        if tokenizer is None and (self._records == "text" or "text" in (self._fields or ())):
            tokenizer = opening.tokenizer
            if tokenizer is None:
                raise ArgumentError(f"{type(self).__name__} needs the model's tokenizer for text; pass `tokenizer=`.")
        if tokenizer is not None:
            self._text = TextStream(opening, tokenizer, skip_special_tokens=self._skip_special)
            self._wire = Wire(self._fields, self._top, plain_tokenizer(tokenizer))
        self.write(self._wire.opening(opening))

    def take(self, event: Event) -> None:
        """Writes what an event is, or the text that it makes certain."""
        chunks = [] if self._text is None else [self._wire.chunk(chunk) for chunk in self._text.take(event)]
        record = self._wire.event(event)
        if self._records == "steps" and record["type"] == "step" and self._text is not None:
            record["text"] = chunks
        if self._records == "steps" or record["type"] == "prefill":
            self.write(record)
        else:
            self._write_all(chunks)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Writes the text that was held, and how the run ended."""
        rest: list[TextChunk] = []
        if self._text is not None:
            finishes = None if result is None else result.finishes
            rest = self._text.finish(finishes, Finish(FinishReason.ERROR, error))
        self._write_all([self._wire.chunk(chunk) for chunk in rest])
        self.write(self._wire.result(result, error))
        self.file.flush()

    def _write_all(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.write(record)
