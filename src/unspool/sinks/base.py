"""What a sink is."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from unspool.errors import SinkError
from unspool.records import Event, Opening, Result

__all__ = ["GeneratorSink", "Sink", "StopStream", "as_sink"]


@runtime_checkable
class Sink(Protocol):
    """Takes the events of one stream: opened once, fed in order, closed exactly once.

    Any object with these three methods is a sink. An exception raised in `open` or `take` ends the stream and
    reaches whoever iterates it; all sinks are still closed. `StopStream` ends it without an error.

    A sink that can undo steps, when it is given a `Retract`, says so by an attribute `retracts` that is true. With
    others a stream can't be rewound.

    A generator function is a sink, too: it receives each event by `yield`, and the `Opening` as its argument if it has
    one. It is closed as generators are, at its `yield`, and an error of the stream's is raised there.

    Example:
        >>> class Count:
        ...     steps = 0
        ...     def open(self, opening): pass
        ...     def take(self, event): self.steps += hasattr(event, "tokens")
        ...     def close(self, result, error): print(f"{self.steps} steps")
        >>> isinstance(Count(), Sink)
        True

        >>> from unspool import Step, generate_stream
        >>> def longest():
        ...     most = 0
        ...     try:
        ...         while True:
        ...             event = yield
        ...             if isinstance(event, Step):
        ...                 most = max(most, int(event.tokens.max()))
        ...     finally:
        ...         print("highest id:", most)
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3).to(longest)
        highest id: ...
    """

    def open(self, opening: Opening) -> None:
        """Called once, before the first event."""

    def take(self, event: Event) -> None:
        """Called with every event, in order. The event may be kept: it holds no other memory alive."""

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Called once, on every path.

        Args:
            result: What the run came to, complete or partial; None when it failed before its first forward.
            error: What ended the run early, if an exception did.
        """


class StopStream(Exception):
    """Raised by a sink in `open` or `take`: the stream ends here, as if whoever iterates it had left."""


class GeneratorSink:
    """A generator as a sink.

    Args:
        made: A generator function, without an argument or with one for the opening, or a generator not yet begun.
    """

    def __init__(self, made: Callable[..., Generator[Any, Event, Any]] | Generator[Any, Event, Any]) -> None:
        self._made = made
        self._generator: Generator[Any, Event, Any] | None = None

    @property
    def retracts(self) -> bool:
        """Whether the function has an attribute of that name."""
        return bool(getattr(self._made, "retracts", False))

    def open(self, opening: Opening) -> None:
        """Runs it up to its first `yield`."""
        made = self._made
        if not inspect.isgenerator(made):
            assert callable(made)  # `as_sink` sees to it
            made = made(opening) if inspect.signature(made).parameters else made()
        self._generator = made
        self._run(lambda: next(made))

    def take(self, event: Event) -> None:
        """Sends it an event; one that has returned gets no more."""
        generator = self._generator
        if generator is not None:
            self._run(lambda: generator.send(event))

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Closes it, or raises the error at its `yield`."""
        generator, self._generator = self._generator, None
        if generator is None:
            return
        if error is None:
            generator.close()
            return
        with contextlib.suppress(StopIteration):
            try:
                generator.throw(error)
            except BaseException as raised:
                if raised is not error:
                    raise
            else:
                generator.close()

    def _run(self, advance: Callable[[], Any]) -> None:
        try:
            advance()
        except StopIteration:
            self._generator = None
        except BaseException:
            self._generator = None
            raise


def as_sink(given: Any) -> Sink:
    """A sink of what was given as one.

    Raises:
        SinkError: It is none.
    """
    if inspect.isgeneratorfunction(given) or inspect.isgenerator(given):
        return GeneratorSink(given)
    missing = [name for name in ("open", "take", "close") if not callable(getattr(given, name, None))]
    if missing or isinstance(given, type):
        lack = "a class, not an object of it" if isinstance(given, type) else f"it has no {' and no '.join(missing)}"
        raise SinkError(f"{given!r} is not a sink: {lack}.")
    sink: Sink = given
    return sink
