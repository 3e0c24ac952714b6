"""One source of events, and the sinks that take them: opened before the first, closed once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from unspool.errors import SinkError
from unspool.events import PAUSE
from unspool.records import Event, Finish, FinishReason, Opening, Result
from unspool.sinks.base import Sink, StopStream, as_sink
from unspool.sinks.held import HeldSink
from unspool.sinks.waited import AsyncSink
from unspool.stages import checks

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["AnySink", "SinkGroup", "Source", "drive"]

AnySink = Sink | AsyncSink | Callable[..., Generator[Any, Event, Any]] | Generator[Any, Event, Any]
"""A sink, or a generator function or generator that receives events by `yield`; in async code, one that is awaited."""


class Source(Protocol):
    """Where the events of a stream come from: a run of a model, a recording, another thread."""

    result: Result | None
    """What it came to; None while it goes on."""

    @property
    def config(self) -> GenerationConfig | None:
        """The generation config, if it is known."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, if there is one."""

    @property
    def home(self) -> Any:
        """What has a thread of its own, on which asynchronous streams are stepped."""

    def events(self) -> Generator[Event, Any, Any]:
        """Makes the events."""

    def opening(self) -> Opening | None:
        """What sinks are told before the first event; None until it is known."""

    def partial(self, otherwise: Finish) -> Result | None:
        """What it has come to so far, with `otherwise` as the ending of live rows."""

    def interrupt(self) -> None:
        """Told, from any thread, that the stream is being left: what waits for others should wait no longer."""

    def release(self) -> None:
        """Lets go of all that is large; the result stays."""


class SinkGroup:
    """The sinks of a stream.

    They take each event in the order in which they were given. When one fails, those after it don't get that event
    any more, and all are closed.

    Args:
        sinks: The sinks.
        config: The generation config, for what can't be done with some sinks.
    """

    def __init__(self, sinks: Iterable[AnySink], config: GenerationConfig | None) -> None:
        self._config = config
        self._sinks: list[Sink] = []
        self._opened = self._closed = False
        self.add(sinks)

    def add(self, sinks: Iterable[AnySink]) -> None:
        """Adds some more.

        Raises:
            SinkError: One is no sink, or the stream has begun.
        """
        given = [as_sink(sink) for sink in sinks]
        if self._config is not None:
            checks.rows_stay(self._config, given, "sinks")
        if given and (self._closed or self._opened):
            raise SinkError(f"{type(given[0]).__name__} came too late: the stream has begun already.")
        self._sinks.extend(given)

    @property
    def opened(self) -> bool:
        """Whether they have been opened."""
        return self._opened

    def must_retract(self, others: Iterable[Any] = ()) -> None:
        """Sees to it that all can take steps back.

        Args:
            others: Sinks that are not of the group.

        Raises:
            SinkError: One can't.
        """
        for sink in (*self._sinks, *others):
            if not getattr(sink, "retracts", False):
                raise SinkError(
                    f"{type(sink).__name__} can't take back what it was given, so the stream can't be rewound. A sink "
                    f"that can takes `Retract` events, and says so with an attribute `retracts = True`."
                )

    def open(self, opening: Opening) -> None:
        """Opens them."""
        self._opened = True
        if opening.revises:
            self._sinks = [it if getattr(it, "retracts", False) else HeldSink(it) for it in self._sinks]
        for sink in self._sinks:
            sink.open(opening)

    def take(self, event: Event) -> None:
        """Hands each an event."""
        for sink in self._sinks:
            sink.take(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Closes every sink, whatever the others do; the first failure is raised when no other error is on its way."""
        if self._closed:
            return
        self._closed = True
        failures = []
        for sink in self._sinks:
            try:
                sink.close(result, error)
            except Exception as failure:
                failures.append(failure)
        if failures and error is None:
            raise failures[0]
        for missed in failures:
            if error is not None:
                error.add_note(f"unspool: a sink failed while closing: {missed!r}")


def drive(source: Source, sinks: SinkGroup) -> Generator[Event, Any, None]:
    """Runs a source into its sinks; whatever happens, they are closed once and the source lets go of what it holds."""
    error: BaseException | None = None
    try:
        for event in source.events():
            if event is PAUSE:
                yield event
                continue
            if not sinks.opened and (opening := source.opening()) is not None:
                sinks.open(opening)
            sinks.take(event)
            yield event
    except StopStream:
        return
    except GeneratorExit:
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        _end(source, sinks, error)


def _end(source: Source, sinks: SinkGroup, error: BaseException | None) -> None:
    source.result = source.partial(_ending(error))
    try:
        sinks.close(source.result if sinks.opened else None, error)
    finally:
        source.release()


def _ending(error: BaseException | None) -> Finish:
    if error is None:
        return Finish(FinishReason.STOPPED)
    interrupted = isinstance(error, KeyboardInterrupt)
    return Finish(FinishReason.INTERRUPTED if interrupted else FinishReason.ERROR, error)
