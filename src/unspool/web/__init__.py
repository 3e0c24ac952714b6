"""Streams as responses of FastAPI and Starlette: server-sent events, NDJSON, text, WebSocket messages.

Needs the extra `web`. A client that leaves stops the model; a server with too much to do says so at once.
"""

from __future__ import annotations

from unspool.web.limits import BodyLimit, Limits, Slots
from unspool.web.responses import ndjson_response, sse_response, text_response
from unspool.web.sockets import send_stream

__all__ = ["BodyLimit", "Limits", "Slots", "ndjson_response", "send_stream", "sse_response", "text_response"]
