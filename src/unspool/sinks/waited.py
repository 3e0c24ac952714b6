"""Sinks whose methods are awaited, for streams in async code."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import anyio

from unspool.records import Event, Opening, Result

if TYPE_CHECKING:
    from unspool.fanout import Source

__all__ = ["AsyncSink", "AsyncSinks", "is_async"]


@runtime_checkable
class AsyncSink(Protocol):
    """A sink whose methods are coroutines: what `Sink` is, with `async def`.

    It is awaited by the task that iterates the stream, before an event is handed to that task; while it waits, no more
    than `lookahead` further steps are made. It is closed once: at the end, by an error, or by `async with` and
    `aclose()`. A stream that is dropped can't wait for anything, so it doesn't close it.

    Example:
        >>> class Send:
        ...     async def open(self, opening): print("open")
        ...     async def take(self, event): await anyio.sleep(0)
        ...     async def close(self, result, error): print("closed after", result.steps)
        >>> import anyio
        >>> from unspool import generate_stream
        >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3)
        >>> result = anyio.run(stream.ato, Send())
        open
        closed after 3
    """

    async def open(self, opening: Opening) -> None:
        """Called once, before the first event."""

    async def take(self, event: Event) -> None:
        """Called with every event, in order."""

    async def close(self, result: Result | None, error: BaseException | None) -> None:
        """Called once."""


def is_async(sink: Any) -> TypeGuard[AsyncSink]:
    """Whether a sink is to be awaited."""
    return inspect.iscoroutinefunction(getattr(sink, "take", None))


class AsyncSinks:
    """The sinks of a stream that are awaited."""

    def __init__(self) -> None:
        self.sinks: list[AsyncSink] = []
        self._opened = self._closed = False

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.sinks)

    def __str__(self) -> str:
        return " and ".join(type(sink).__name__ for sink in self.sinks)

    async def take(self, source: Source, event: Event) -> None:
        """Hands each an event; opens them before the first."""
        opening = None if self._opened else source.opening()
        if opening is not None:
            self._opened = True
            for sink in self.sinks:
                await sink.open(opening)
        for sink in self.sinks:
            await sink.take(event)

    async def close(self, source: Source, error: BaseException | None) -> None:
        """Closes each, whatever the others do, even in a cancelled scope; the first failure is raised at the end."""
        if self._closed or not self.sinks:
            return
        self._closed = True
        failures = []
        told = error if isinstance(error, (Exception, KeyboardInterrupt)) else None
        for sink in self.sinks:
            try:
                with anyio.CancelScope(shield=True):
                    await sink.close(source.result if self._opened else None, told)
            except Exception as failure:
                failures.append(failure)
        if failures and error is None:
            raise failures[0]
        if error is not None:
            for missed in failures:
                error.add_note(f"unspool: a sink failed while closing: {missed!r}")
