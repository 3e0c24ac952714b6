"""A stream handed to another thread."""

from __future__ import annotations

import queue
from collections.abc import Generator
from typing import Any

from unspool.errors import ArgumentError
from unspool.records import Event, Finish, Opening, Result
from unspool.sinks.base import StopStream
from unspool.stream import Stream

__all__ = ["ChannelSink"]

_PATIENCE = 0.05  # seconds; how soon a side that waits sees that the other has left


class ChannelSink:
    """A bounded queue between the thread that steps a stream and one that reads it.

    Give it to a stream as a sink, and read `stream` in the other thread: a `Stream` of the same events, with steps,
    text, sinks and a result of its own. A slow reader slows the model. An error arrives as itself, after the steps
    before it; a reader that leaves ends the stream, as if whoever iterates it had left.

    Args:
        maxsize: How many events may wait.
        tokenizer: What `stream.text()` uses; by default the tokenizer that the call was given.

    Attributes:
        stream: The reading side.

    Raises:
        ArgumentError: `maxsize` is not a positive number.

    Example:
        >>> import threading
        >>> from unspool import generate_stream
        >>> channel = ChannelSink()
        >>> producer = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3, sinks=[channel])
        >>> thread = threading.Thread(target=producer.to)
        >>> thread.start()
        >>> [step.index for step in channel.stream]
        [0, 1, 2]
        >>> thread.join()
    """

    retracts = True

    def __init__(self, maxsize: int = 16, *, tokenizer: Any = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int) or maxsize < 1:
            raise ArgumentError(f"maxsize={maxsize!r} is no number of events; 1 or more would do.")
        self._reading = _Reading(queue.Queue(maxsize), tokenizer)
        self.stream = Stream(self._reading)

    def open(self, opening: Opening) -> None:
        """Hands over what the run begins with."""
        self._put(opening)

    def take(self, event: Event) -> None:
        """Hands over an event; waits while the queue is full.

        Raises:
            StopStream: The reader has left.
        """
        self._put(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Hands over how the run ended."""
        try:
            self._put(_End(result, error))
        except StopStream:
            return

    def _put(self, item: Any) -> None:
        reading = self._reading
        while not reading.left:
            try:
                reading.items.put(item, timeout=_PATIENCE)
            except queue.Full:
                continue
            return
        raise StopStream


class _End:
    """The end of a run."""

    def __init__(self, result: Result | None, error: BaseException | None) -> None:
        self.result, self.error = result, error


class _Reading:
    """The source of the reading side."""

    def __init__(self, items: queue.Queue[Any], tokenizer: Any) -> None:
        self.items, self._tokenizer = items, tokenizer
        self.left = False
        self.result: Result | None = None
        self._opening: Opening | None = None
        self._end: _End | None = None

    @property
    def config(self) -> Any:
        """None: what can't be done was refused where the stream was made."""
        return None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer given to the sink, or to the call."""
        given = None if self._opening is None else self._opening.tokenizer
        return self._tokenizer if self._tokenizer is not None else given

    @property
    def home(self) -> Any:
        """Itself: it must not wait on the thread that steps the model."""
        return self

    def events(self) -> Generator[Event, Any, None]:
        """What comes through the queue."""
        while self._end is None and not self.left:
            try:
                item = self.items.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if isinstance(item, Opening):
                self._opening = item
            elif isinstance(item, _End):
                self._end = item
                if item.error is not None:
                    raise item.error
            else:
                yield item

    def opening(self) -> Opening | None:
        """What came first."""
        return self._opening

    def partial(self, otherwise: Finish) -> Result | None:
        """What the run came to; None if it goes on."""
        return None if self._end is None else self._end.result

    def interrupt(self) -> None:
        """Waits no longer."""
        self.left = True

    def release(self) -> None:
        """Lets the other side know that nobody reads on."""
        self.left = True
        while not self.items.empty():
            self.items.get_nowait()
