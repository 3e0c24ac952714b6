"""Sinks: where the events of a stream can go. Anything with the three methods of `Sink` is one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unspool.sinks.base import Sink
    from unspool.sinks.beams import BeamSink
    from unspool.sinks.collect import CollectSink
    from unspool.sinks.terminal import TerminalSink
    from unspool.sinks.text import TextSink

__all__ = ["BeamSink", "CollectSink", "Sink", "TerminalSink", "TextSink"]

_HOMES = {
    "BeamSink": "beams",
    "CollectSink": "collect",
    "Sink": "base",
    "TerminalSink": "terminal",
    "TextSink": "text",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"unspool.sinks.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module 'unspool.sinks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
