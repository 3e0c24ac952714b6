"""Records made of events, and sinks that write one a line or a block: what JSONL and server-sent events share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Literal, TextIO

from unspool.detokenize import plain_tokenizer
from unspool.errors import ArgumentError
from unspool.records import Event, Finish, FinishReason, Opening, Result
from unspool.text import Opened, TextStream
from unspool.wire import Wire

__all__ = ["RecordReader", "RecordWriter", "Records"]

Kind = Literal["steps", "text"]


class Records:
    """Makes records of plain data of what happens in a run.

    Args:
        tokenizer: The model's tokenizer, for text; by default the one that the call was given, where text is asked for.
        records: `"steps"`: one a step; with a tokenizer it has the text that the step makes certain, as `text`.
            `"text"`: one for each piece of text.
        fields: Which fields of a step to tell.
        top_logprobs: How many of the likeliest tokens to tell for each row of a step.
        skip_special_tokens: Whether special tokens have no text.
        tells_errors: Whether errors are told by kind and message.

    Raises:
        ArgumentError: An argument is wrong.
    """

    def __init__(
        self,
        *,
        tokenizer: Any = None,
        records: Kind = "steps",
        fields: Collection[str] | None = None,
        top_logprobs: int = 0,
        skip_special_tokens: bool = True,
        tells_errors: bool = True,
    ) -> None:
        if records not in ("steps", "text"):
            raise ArgumentError(f"records={records!r} is no kind of record; 'steps' or 'text' would do.")
        self._records, self._skip_special, self._tokenizer = records, skip_special_tokens, tokenizer
        self._fields, self._top, self._tells_errors = fields, top_logprobs, tells_errors
        self._text: TextStream | None = None
        self._wire = self._wired(tokenizer)

    def opening(self, opening: Opening) -> dict[str, Any]:
        """What a run begins with.

        Raises:
            ArgumentError: Text is asked for, and there is no tokenizer.
        """
        tokenizer = self._tokenizer
        if tokenizer is None and (self._records == "text" or "text" in (self._fields or ())):
            tokenizer = opening.tokenizer
            if tokenizer is None:
                raise ArgumentError("Records of text need the model's tokenizer; pass it as `tokenizer=`.")
        if tokenizer is not None:
            self._text = TextStream(opening, tokenizer, skip_special_tokens=self._skip_special)
            self._wire = self._wired(tokenizer)
        return self._wire.opening(opening)

    def event(self, event: Event) -> list[dict[str, Any]]:
        """What an event is, or the text that it makes certain."""
        chunks = [] if self._text is None else [self._wire.chunk(chunk) for chunk in self._text.take(event)]
        record = self._wire.event(event)
        if record["type"] == "prefill":
            return [record]
        if self._records == "text":
            return chunks
        return [record if self._text is None else {**record, "text": chunks}]

    def end(self, result: Result | None, error: BaseException | None) -> list[dict[str, Any]]:
        """The text that was held, and how the run ended."""
        rest = []
        if self._text is not None:
            finishes = None if result is None else result.finishes
            rest = self._text.finish(finishes, Finish(FinishReason.ERROR, error))
        return [*(self._wire.chunk(chunk) for chunk in rest), self._wire.result(result, error)]

    def _wired(self, tokenizer: Any) -> Wire:
        plain = None if tokenizer is None else plain_tokenizer(tokenizer)
        return Wire(self._fields, self._top, plain, tells_errors=self._tells_errors)


class RecordReader:
    """Reads a run as records: the first says what it begins with, the last how it ended.

    Args:
        run: The run.
        records: Makes the records.
    """

    def __init__(self, run: Opened, records: Records) -> None:
        self._run, self._records = run, records
        self._begun = False

    def take(self, event: Event) -> list[dict[str, Any]]:
        """The records of an event."""
        return [*self._begin(), *self._records.event(event)]

    def finish(self) -> list[dict[str, Any]]:
        """The last records."""
        return [*self._begin(), *self._records.end(self._run.result, None)]

    def fail(self, error: BaseException) -> list[dict[str, Any]]:
        """The last records."""
        return [*self._begin(), *self._records.end(self._run.result, error)]

    def _begin(self) -> list[dict[str, Any]]:
        opening = None if self._begun else self._run.opening()
        self._begun = self._begun or opening is not None
        return [] if opening is None else [self._records.opening(opening)]


class RecordWriter(ABC):
    """Writes what happens as records of plain data.

    Args:
        file: Where to write.
        tokenizer: As for `Records`, like the others.
        records: As for `Records`.
        fields: As for `Records`.
        top_logprobs: As for `Records`.
        skip_special_tokens: As for `Records`.
        tells_errors: As for `Records`.
    """

    retracts = True

    def __init__(
        self,
        file: TextIO,
        *,
        tokenizer: Any = None,
        records: Kind = "steps",
        fields: Collection[str] | None = None,
        top_logprobs: int = 0,
        skip_special_tokens: bool = True,
        tells_errors: bool = True,
    ) -> None:
        self.file = file
        self._made = Records(
            tokenizer=tokenizer,
            records=records,
            fields=fields,
            top_logprobs=top_logprobs,
            skip_special_tokens=skip_special_tokens,
            tells_errors=tells_errors,
        )

    @abstractmethod
    def write(self, record: dict[str, Any]) -> None:
        """Writes a record; its `type` is start, prefill, step, text, end or error."""

    def open(self, opening: Opening) -> None:
        """Writes what the run begins with.

        Raises:
            ArgumentError: Text is asked for, and there is no tokenizer.
        """
        self.write(self._made.opening(opening))

    def take(self, event: Event) -> None:
        """Writes what an event is, or the text that it makes certain."""
        self._write_all(self._made.event(event))

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Writes the text that was held, and how the run ended."""
        self._write_all(self._made.end(result, error))
        self.file.flush()

    def _write_all(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.write(record)
