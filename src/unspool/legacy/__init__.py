"""Streamers of the old kind: those of transformers and of its users as sinks, and drop-ins for transformers' own."""

from __future__ import annotations

from unspool.legacy.iterators import AsyncTextIteratorStreamer, TextIteratorStreamer
from unspool.legacy.printer import TextStreamer
from unspool.legacy.shim import StreamerSink, sink_of

__all__ = ["AsyncTextIteratorStreamer", "StreamerSink", "TextIteratorStreamer", "TextStreamer", "sink_of"]
