"""A stream as WebSocket messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Any, Literal

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from unspool.records import Result
from unspool.stream import Stream
from unspool.wire import Wire, plain

__all__ = ["send_stream"]

_log = logging.getLogger("unspool.web")


async def send_stream(
    websocket: WebSocket,
    stream: Stream,
    *,
    tokenizer: Any = None,
    records: Literal["steps", "text"] = "text",
    fields: Collection[str] | None = None,
    top_logprobs: int = 0,
) -> Result | None:
    """Sends a stream as messages of JSON, the records of `JsonlSink`, over a WebSocket that has been accepted.

    A client that disconnects, or sends `{"type": "stop"}`, stops the model; after a stop the `end` record comes all the
    same. Other messages are ignored. The connection stays open for what comes next.

    Args:
        websocket: The connection.
        stream: The stream, not yet begun.
        tokenizer: As for `sse_response`, like the others.
        records: As for `sse_response`.
        fields: As for `sse_response`.
        top_logprobs: As for `sse_response`.

    Returns:
        What the stream came to.
    """
    made = stream.records(
        tokenizer=tokenizer, records=records, fields=fields, top_logprobs=top_logprobs, tells_errors=False
    )
    stopped = False
    async with stream, anyio.create_task_group() as tasks:

        async def listen() -> None:
            nonlocal stopped
            stopped = await _stop_is_asked(websocket)
            tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        try:
            async for record in made:
                await websocket.send_json(plain(record))
        except WebSocketDisconnect:
            pass
        except Exception:
            _log.exception("A stream failed.")
        tasks.cancel_scope.cancel()
    if stopped:
        await websocket.send_json(Wire().result(stream.result, None))
    return stream.result


async def _stop_is_asked(websocket: WebSocket) -> bool:
    """Returns when the client wants no more: whether it asked, or is gone."""
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return False
        try:
            said = json.loads(message.get("text") or message.get("bytes") or b"null")
        except ValueError:
            continue
        if isinstance(said, dict) and said.get("type") == "stop":
            return True
