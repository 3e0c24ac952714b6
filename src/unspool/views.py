"""Ways to read a stream: as events, as steps, as text. Each can be iterated with `for` and with `async for`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from unspool.records import Event, Step

if TYPE_CHECKING:
    from unspool.stream import Stream

__all__ = ["Events", "Reader", "Steps", "View"]

T = TypeVar("T")


class Reader(Protocol[T]):
    """Makes something of a stream's events. Called on the thread that steps the stream."""

    def take(self, event: Event) -> list[T]:
        """What an event gives, in order; often nothing."""

    def finish(self) -> list[T]:
        """What is left once the events are over."""

    def fail(self, error: BaseException) -> list[T]:
        """What is left when they end in an error."""


class Events:
    """Every event as it is."""

    def take(self, event: Event) -> list[Event]:
        """The event."""
        return [event]

    def finish(self) -> list[Event]:
        """Nothing."""
        return []

    def fail(self, error: BaseException) -> list[Event]:
        """Nothing."""
        return []


class Steps:
    """The steps among the events."""

    def take(self, event: Event) -> list[Step]:
        """The event, if it is a step."""
        return [event] if isinstance(event, Step) else []

    def finish(self) -> list[Step]:
        """Nothing."""
        return []

    def fail(self, error: BaseException) -> list[Step]:
        """Nothing."""
        return []


class View(Iterator[T], AsyncIterator[T], Generic[T]):
    """A stream, read in one way.

    Several views of one stream share its events: each event goes to the view that asks for it.

    Args:
        stream: The stream.
        reader: What makes the items.
    """

    def __init__(self, stream: Stream, reader: Reader[T]) -> None:
        self._stream, self._reader = stream, reader
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._items:
            self._raise_at_end(StopIteration)
            self._pull()
        return self._items.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            self._raise_at_end(StopAsyncIteration)
            made = await self._stream.next_made(self._reader)
            self._items.extend(made.items)
            self._error, self._over = made.error, made.over
        return self._items.popleft()

    def _pull(self) -> None:
        """Reads one event more, or the end."""
        try:
            event = self._stream.next_event()
        except StopIteration:
            self._items.extend(self._reader.finish())
            self._over = True
        except Exception as error:
            self._items.extend(self._reader.fail(error))
            self._error, self._over = error, True
        else:
            self._items.extend(self._reader.take(event))

    def _raise_at_end(self, stop: type[BaseException]) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._over:
            raise stop
