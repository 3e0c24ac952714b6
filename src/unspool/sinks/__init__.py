"""Sinks: where the events of a stream can go. Anything with the three methods of `Sink` is one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unspool.sinks.audio import AudioSink
    from unspool.sinks.base import Sink, StopStream
    from unspool.sinks.beams import BeamSink
    from unspool.sinks.callback import CallbackSink, TeeSink
    from unspool.sinks.channel import ChannelSink
    from unspool.sinks.collect import CollectSink
    from unspool.sinks.jsonl import JsonlSink
    from unspool.sinks.metrics import MetricsSink
    from unspool.sinks.otel import OtelSink
    from unspool.sinks.probe import ProbeSink
    from unspool.sinks.recording import RecordSink, replay
    from unspool.sinks.sse import SseSink
    from unspool.sinks.terminal import TerminalSink
    from unspool.sinks.text import TextSink
    from unspool.sinks.throttle import ThrottleSink
    from unspool.sinks.waited import AsyncSink

__all__ = [
    "AsyncSink",
    "AudioSink",
    "BeamSink",
    "CallbackSink",
    "ChannelSink",
    "CollectSink",
    "JsonlSink",
    "MetricsSink",
    "OtelSink",
    "ProbeSink",
    "RecordSink",
    "Sink",
    "SseSink",
    "StopStream",
    "TeeSink",
    "TerminalSink",
    "TextSink",
    "ThrottleSink",
    "replay",
]

_HOMES = {
    "AsyncSink": "waited",
    "AudioSink": "audio",
    "BeamSink": "beams",
    "CallbackSink": "callback",
    "ChannelSink": "channel",
    "CollectSink": "collect",
    "JsonlSink": "jsonl",
    "MetricsSink": "metrics",
    "OtelSink": "otel",
    "ProbeSink": "probe",
    "RecordSink": "recording",
    "Sink": "base",
    "SseSink": "sse",
    "StopStream": "base",
    "TeeSink": "callback",
    "TerminalSink": "terminal",
    "TextSink": "text",
    "ThrottleSink": "throttle",
    "replay": "recording",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"unspool.sinks.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'unspool.sinks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
