"""Events made on another thread, a bounded number of them ahead of whoever awaits them."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from unspool.records import Event
    from unspool.stepping import Stepper
    from unspool.views import Reader

__all__ = ["Ahead", "Made", "from_thread"]


@dataclass(slots=True)
class Made:
    """What one turn on the thread came to.

    Attributes:
        reader: Who read the event.
        event: The event; None at the end.
        items: What the reader made of it.
        error: What went wrong, after the items.
        over: Whether nothing comes after this.
    """

    reader: Reader[Any]
    event: Event | None
    items: list[Any]
    error: BaseException | None = None
    over: bool = False

    def read(self, reader: Reader[Any]) -> None:
        """Has another reader read it."""
        self.reader = reader
        if self.event is not None:
            self.items = reader.take(self.event)
        else:
            self.items = reader.finish() if self.error is None else reader.fail(self.error)


class Ahead:
    """Steps a stream's events on a thread, one in a turn, and hands them to a task.

    Args:
        events: The events. From now on only the thread steps and closes them.
        stepper: The thread.
        lookahead: How many events that something is made of may wait for the task.
        modes: What is entered around each step.
        interrupt: Called when the events are being left.
        every: Whether events of which nothing is made are handed to the task as well.
    """

    def __init__(
        self,
        events: Generator[Event, Any, None],
        stepper: Stepper,
        lookahead: int,
        modes: AbstractContextManager[Any],
        interrupt: Callable[[], object],
        *,
        every: bool = False,
    ) -> None:
        self._events, self._stepper, self._lookahead = events, stepper, lookahead
        self._every = every
        self._context, self._modes, self._interrupt = contextvars.copy_context(), modes, interrupt
        self._lock = threading.RLock()  # a stream may be collected, and left, wherever its lock is held
        self._ready: deque[Made] = deque()
        self._reader: Reader[Any] | None = None
        self._wake: Callable[[], None] | None = None
        self._closers: list[Callable[[], None]] = []
        self._queued = self._awaited = self._leaving = self._ended = False
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        stepper.register(self)

    # ---------------------------------------------------------------------------------- on the task's thread

    async def next(self, reader: Reader[Any]) -> Made:
        """The next event of which a reader makes something, or the end.

        Raises:
            anyio.BusyResourceError: Another task is waiting for it.
        """
        if self._awaited:
            raise anyio.BusyResourceError("iterating over")
        if self._leaving:
            return Made(reader, None, [], over=True)
        self._awaited = True
        self._read_by(reader)
        try:
            if (made := self._take()) is not None:
                await anyio.lowlevel.checkpoint()
                return made
            while (made := self._take()) is None:
                woken = anyio.Event()
                if self._ask(from_thread(woken.set)):
                    await woken.wait()
        except BaseException:  # cancelled: nobody will take what was asked for
            self.leave()
            raise
        finally:
            self._wake, self._awaited = None, False
        return made

    def idle(self) -> bool:
        """Whether nothing is being made on the thread, or waits for the task."""
        with self._lock:
            return not self._queued and not self._ready and not self._awaited

    async def aclose(self, error: BaseException | None = None) -> None:
        """Ends the events on their thread, and waits for that, even in a cancelled scope.

        Args:
            error: What the consumer left with, if an exception.

        Raises:
            Exception: What a sink raised while closing.
        """
        closed = anyio.Event()
        self._closers.append(from_thread(closed.set))
        self.leave(error)
        with anyio.CancelScope(shield=True):
            await closed.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def leave(self, error: BaseException | None = None) -> None:
        """Ends the events on their thread, after the step under way; doesn't wait."""
        with self._lock:
            if not self._leaving:
                self._leaving, self._error = True, error
                self._interrupt()
        if not self._stepper.submit(self._end):
            self._end()  # its thread is gone, and steps nothing any more

    def _read_by(self, reader: Reader[Any]) -> None:
        """Makes a reader the one that reads, what is ready included."""
        with self._lock:
            if self._reader is not reader:
                self._reader = reader
                for made in self._ready:
                    made.read(reader)

    def _take(self) -> Made | None:
        """What is ready, if anything is; has more made in its place."""
        with self._lock:
            made = self._ready.popleft() if self._ready else None
            self._refill()
        return made

    def _ask(self, wake: Callable[[], None]) -> bool:
        """Has something made; says no if it is ready by now."""
        with self._lock:
            if self._ready:
                return False
            self._wake = wake
            self._refill()
            return True

    def _refill(self) -> None:
        """Queues a turn on the thread, if one is wanted. The lock is held."""
        wanted = len(self._ready) < self._lookahead or (self._wake is not None and not self._ready)
        over = self._leaving or (self._ready and self._ready[-1].over)
        if wanted and not over and not self._queued and self._reader is not None:
            self._queued = self._stepper.submit(self._turn)
            if not self._queued:
                self._ready.append(Made(self._reader, None, [], over=True))

    # ------------------------------------------------------------------------------- on the stepping thread

    def _turn(self) -> None:
        """One event: made, read, and handed over."""
        reader = self._reader
        assert reader is not None  # a turn is queued for a reader
        made = Made(reader, None, [], over=True) if self._leaving else self._context.run(self._make, reader)
        with self._lock:
            self._queued = False
            if made.reader is not self._reader and self._reader is not None:
                made.read(self._reader)
            if made.items or self._every or made.error is not None or made.over:
                self._ready.append(made)
            self._refill()
            wake = None
            if self._ready:
                wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _make(self, reader: Reader[Any]) -> Made:
        try:
            with self._modes:
                event = next(self._events)
        except StopIteration:
            return Made(reader, None, reader.finish(), over=True)
        except BaseException as error:
            return Made(reader, None, reader.fail(error), error, over=True)
        try:
            return Made(reader, event, reader.take(event))
        except Exception as error:
            return Made(reader, event, [], error)

    def _end(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, True
            closers, self._closers = self._closers, []
        if not ended:
            self._close()
        for closed in closers:
            closed()

    def _close(self) -> None:
        """Ends the generator, with what the consumer left with if that was an error of its own."""
        error = self._error if isinstance(self._error, (Exception, KeyboardInterrupt)) else None
        try:
            if error is None:
                self._context.run(self._events.close)
            else:
                self._context.run(self._events.throw, error)
        except BaseException as raised:
            if raised is not error and not isinstance(raised, StopIteration):
                self._failure = raised


def from_thread(call: Callable[[], object]) -> Callable[[], None]:
    """A function that has a call made in the running event loop, from any thread, and doesn't wait for it."""
    loop: Any = current_token().native_token
    schedule = loop.call_soon_threadsafe if hasattr(loop, "call_soon_threadsafe") else loop.run_sync_soon

    def scheduled() -> None:
        try:
            schedule(call)
        except RuntimeError:  # the loop has ended meanwhile, and nobody waits any more
            return

    return scheduled
