"""A stream as a response."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Literal

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from unspool.sinks.sse import encode_comment
from unspool.stream import Stream
from unspool.web.limits import Slots
from unspool.wire import dumps

__all__ = ["ndjson_response", "sse_response", "text_response"]

_log = logging.getLogger("unspool.web")
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nothing in between keeps events back


def sse_response(
    stream: Stream,
    *,
    tokenizer: Any = None,
    records: Literal["steps", "text"] = "text",
    fields: Collection[str] | None = None,
    top_logprobs: int = 0,
    keep_alive: float = 15.0,
    slots: Slots | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A stream as server-sent events: `start`, `text` or `step`, then `end` or `error`, with ids that count from 0.

    A client that leaves stops the model. While nothing comes, as during a long prompt, comments keep the connection
    alive. What goes wrong is logged; the client is told that something did.

    Args:
        stream: The stream, not yet begun.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        records: `"text"` or `"steps"`.
        fields: As for `JsonlSink`.
        top_logprobs: As for `JsonlSink`.
        keep_alive: Seconds between comments.
        slots: Where to take a place for as long as the stream runs.
        headers: Further headers.

    Raises:
        ArgumentError: An argument is wrong.
        HTTPException: 503: `slots` has no place left.
    """
    made = _records(stream, tokenizer, records, fields, top_logprobs)

    async def events() -> AsyncIterator[ServerSentEvent | bytes]:
        count = 0
        async for record in _logged(made):
            if record["type"] == "prefill":
                yield encode_comment(f"prefill {record['done']}/{record['total']}").encode()
                continue
            yield ServerSentEvent(dumps(record), event=record["type"], id=str(count), sep="\n")
            count += 1

    response = _Events(events(), ping=keep_alive, headers={**_HEADERS, **(headers or {})}, sep="\n")
    return response.over(stream, slots)


def ndjson_response(
    stream: Stream,
    *,
    tokenizer: Any = None,
    records: Literal["steps", "text"] = "text",
    fields: Collection[str] | None = None,
    top_logprobs: int = 0,
    slots: Slots | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A stream as lines of JSON: the records of `JsonlSink`. The progress of a long prompt keeps the connection alive.

    The arguments are those of `sse_response`.
    """
    made = _records(stream, tokenizer, records, fields, top_logprobs)

    async def lines() -> AsyncIterator[str]:
        async for record in _logged(made):
            yield dumps(record) + "\n"

    kind = "application/x-ndjson"
    return _Watched(lines(), media_type=kind, headers={**_HEADERS, **(headers or {})}).over(stream, slots)


def text_response(
    stream: Stream,
    *,
    tokenizer: Any = None,
    slots: Slots | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A stream as plain text: that of its first row, as it becomes certain. An error ends it early, and is logged.

    The arguments are those of `sse_response`.
    """
    chunks = stream.text(tokenizer)

    async def text() -> AsyncIterator[str]:
        try:
            async for chunk in chunks:
                if chunk.row == 0 and chunk.text:
                    yield chunk.text
        except Exception:
            _log.exception("A stream failed.")

    return _Watched(text(), media_type="text/plain", headers={**_HEADERS, **(headers or {})}).over(stream, slots)


def _records(stream: Stream, tokenizer: Any, records: Any, fields: Any, top_logprobs: int) -> AsyncIterator[Any]:
    return stream.records(
        tokenizer=tokenizer, records=records, fields=fields, top_logprobs=top_logprobs, tells_errors=False
    )


async def _logged(records: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The records; an error, of which the last one tells, goes to the log."""
    try:
        async for record in records:
            yield record
    except Exception:
        _log.exception("A stream failed.")


class _OverStream(Response):
    """A response that closes a stream, and gives its place back, however it ends."""

    _stream: Stream
    _give_back: Callable[[], None]

    def over(self, stream: Stream, slots: Slots | None) -> Response:
        """Says which stream, and where its place is."""
        self._stream = stream
        self._give_back = (lambda: None) if slots is None else slots.take()
        weakref.finalize(self, self._give_back)  # where the response is never sent
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._stream.aclose()
            finally:
                self._give_back()


class _Events(_OverStream, EventSourceResponse):
    """Server-sent events."""


class _Watching(StreamingResponse):
    """A streaming response that sees its client leave, whatever the server tells it when it sends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await self.stream_response(send)
            tasks.cancel_scope.cancel()


class _Watched(_OverStream, _Watching):
    """Lines or text."""
