"""Sinks that pass events on to a function, or to several sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unspool.fanout import AnySink
from unspool.records import Event, Opening, Result, Step
from unspool.sinks.base import as_sink

__all__ = ["CallbackSink", "TeeSink"]


class CallbackSink:
    """Calls a function with each step.

    Args:
        function: What to call. What it returns means nothing; what it raises ends the stream.
        events: Whether it gets all events: the progress of the prompt, and what is taken back.

    Example:
        >>> from unspool import generate_stream
        >>> sink = CallbackSink(lambda step: print(step.index))
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=2).to(sink)
        0
        1
    """

    def __init__(self, function: Callable[[Any], Any], *, events: bool = False) -> None:
        self._function, self._events = function, events

    @property
    def retracts(self) -> bool:
        """Whether it gets all events."""
        return self._events

    def open(self, opening: Opening) -> None:
        """Does nothing."""

    def take(self, event: Event) -> None:
        """Calls the function."""
        if self._events or isinstance(event, Step):
            self._function(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Does nothing."""


class TeeSink:
    """Several sinks as one, each of which fails alone.

    Where a stream ends when one of its sinks fails, here the others go on; what failed is closed at once, and raised
    when the stream is over.

    Args:
        *sinks: The sinks.

    Attributes:
        failures: For each sink that failed, by its number, what it raised.

    Example:
        >>> from unspool import generate_stream
        >>> from unspool.sinks import CallbackSink
        >>> tee = TeeSink(CallbackSink(lambda step: 1 / 0), CallbackSink(lambda step: print(step.index)))
        >>> generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=2).to(tee)
        Traceback (most recent call last):
        ZeroDivisionError: division by zero
        >>> tee.failures
        {0: ZeroDivisionError('division by zero')}
    """

    def __init__(self, *sinks: AnySink) -> None:
        self._sinks = dict(enumerate(as_sink(sink) for sink in sinks))
        self.failures: dict[int, Exception] = {}

    @property
    def retracts(self) -> bool:
        """Whether all of them can take steps back."""
        return all(getattr(sink, "retracts", False) for sink in self._sinks.values())

    def open(self, opening: Opening) -> None:
        """Opens them."""
        self._each(lambda sink: sink.open(opening))

    def take(self, event: Event) -> None:
        """Hands each the event."""
        self._each(lambda sink: sink.take(event))

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Closes them.

        Raises:
            Exception: What the first that failed raised, if the stream itself came to no error.
        """
        self._each(lambda sink: sink.close(result, error), closing=True)
        if self.failures and error is None:
            raise self.failures[min(self.failures)]

    def _each(self, call: Callable[[Any], Any], *, closing: bool = False) -> None:
        for number, sink in list(self._sinks.items()):
            try:
                call(sink)
            except Exception as failure:
                self.failures.setdefault(number, failure)
                del self._sinks[number]
                if not closing:
                    self._close_failed(sink, failure)

    def _close_failed(self, sink: Any, failure: Exception) -> None:
        try:
            sink.close(None, failure)
        except Exception as another:
            failure.add_note(f"unspool: and failed while closing: {another!r}")
