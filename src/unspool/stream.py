"""What users iterate."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from unspool.ahead import Ahead, Made
from unspool.ambient import autocast_now
from unspool.errors import SinkError, StreamError
from unspool.records import Event, Finish, FinishReason, Opening, Result, Step, TextChunk
from unspool.stages import checks
from unspool.stepping import stepper_of
from unspool.views import Events, Reader, Steps, View

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from unspool.pipeline import Run
    from unspool.sinks.base import Sink

__all__ = ["Stream"]


class Stream(Iterator[Step], AsyncIterator[Step]):
    """A generation that is under way: pull a step, look at it, pull the next.

    With `for`, nothing runs before the first `next()`, and nothing runs between two. Leaving early costs nothing more:
    `break`, `close()`, the end of a `with` block and any exception free the cache and close the sinks.

    With `async for`, on asyncio or trio, the model is stepped on a thread of its own, at most `lookahead` steps ahead.
    Leaving early costs at most one more forward.

    Example:
        >>> from unspool import generate_stream
        >>> model, ids = tiny_model(), torch.tensor([[5, 6, 7]])
        >>> with generate_stream(model, ids, max_new_tokens=3, do_sample=False) as stream:
        ...     for step in stream:
        ...         print(step.index, tuple(step.tokens.shape), tuple(step.logits.shape))
        0 (1,) (1, 160)
        1 (1,) (1, 160)
        2 (1,) (1, 160)
        >>> stream.result.finishes[0].reason.name
        'MAX_LENGTH'
    """

    def __init__(self, run: Run, sinks: Iterable[Sink] = (), *, lookahead: int = 1) -> None:
        self._run = run
        self._sinks = _Sinks(sinks, run.plan.config)
        self._events = _drive(run, self._sinks)
        self._steps = Steps()
        self._lookahead = checks.lookahead(lookahead)
        self._ahead: Ahead | None = None
        self._ended = False
        self._leave = False

    def __next__(self) -> Step:
        """The next step.

        Raises:
            StopIteration: All rows have ended, or the stream was closed.
            StreamError: The stream is iterated with `async for`.
        """
        while True:
            event = self.next_event()
            if isinstance(event, Step):
                return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        """The next step, made on the model's thread.

        Raises:
            StopAsyncIteration: All rows have ended, or the stream was closed.
            anyio.BusyResourceError: Another task is waiting for it.
        """
        made = await self.next_made(self._steps)
        if made.error is not None:
            raise made.error
        if made.over:
            raise StopAsyncIteration
        step: Step = made.items[0]
        return step

    def events(self) -> View[Event]:
        """All events, prefill progress as well as steps, for `for` and `async for`."""
        return View(self, Events())

    def text(self, tokenizer: Any = None, *, skip_special_tokens: bool = True) -> View[TextChunk]:
        """The text as it comes, row by row, with the ids and logprobs it was made from, for `for` and `async for`.

        Text that may yet turn out to be a stop string is held until that is known.

        Args:
            tokenizer: The model's tokenizer; by default the one that the call was given.
            skip_special_tokens: Whether special tokens have no text.

        Returns:
            An iterator: a chunk whenever a row has new text, and one with `finish` set when it ends.

        Raises:
            ArgumentError: There is no tokenizer.
        """
        from unspool.text import TextReader

        tokenizer = tokenizer if tokenizer is not None else self._run.plan.request.tokenizer
        return View(self, TextReader(self._run, tokenizer, skip_special_tokens=skip_special_tokens))

    def to(self, *sinks: Sink) -> Result:
        """Runs the stream to its end into some sinks.

        Returns:
            The result.
        """
        self._sinks.add(sinks)
        for _ in self.events():
            pass
        result = self.result
        assert result is not None  # a run that reached its end has a state
        return result

    async def ato(self, *sinks: Sink) -> Result:
        """Runs the stream to its end into some sinks, on the model's thread.

        Returns:
            The result.
        """
        self._sinks.add(sinks)
        async for _ in self.events():
            pass
        result = self.result
        assert result is not None  # a run that reached its end has a state
        return result

    @property
    def result(self) -> Result | None:
        """What the run has come to: complete after its end, partial before and after leaving it.

        None before the first event. Rows that are still live are given as stopped.
        """
        return self._run.partial(Finish(FinishReason.STOPPED))

    def close(self) -> None:
        """Leaves the stream: closes the sinks and frees the cache. Safe to call twice, and from another thread.

        From another thread, while a step is being made, the stream is left when that step is done. So is one that is
        iterated with `async for`; `aclose()` waits for that.
        """
        self._leave = True
        if self._ahead is not None:
            self._ahead.leave()
            return
        try:
            self._events.close()
        except ValueError:  # it is running now, in another thread, which will see the flag
            return
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._ended:
            self._leave_with(error)
        self.close()

    async def aclose(self) -> None:
        """The same, and waits until the thread that steps the stream is done with it. Safe to call twice."""
        await self._aclose(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aclose(error)

    async def _aclose(self, error: BaseException | None) -> None:
        self._leave = True
        if self._ahead is None:
            self.__exit__(None if error is None else type(error), error, None)
        else:
            await self._ahead.aclose(error)

    async def next_made(self, reader: Reader[Any]) -> Made:
        """The next event of which a reader makes something, made on the model's thread; or the end."""
        if self._ahead is None:
            if self._leave or self._ended:
                return Made(reader, None, [], over=True)
            model = self._run.plan.model
            self._ahead = Ahead(self._events, stepper_of(model), self._lookahead, autocast_now(model.device))
            weakref.finalize(self, Ahead.leave, self._ahead)
        return await self._ahead.next(reader)

    def next_event(self) -> Event:
        """The next event, made here and now.

        Raises:
            StopIteration: There is none.
            StreamError: The stream is iterated with `async for`.
        """
        if self._ahead is not None:
            raise StreamError("This stream is iterated with `async for`; go on with that, or make another.")
        if self._leave:
            self.close()
            raise StopIteration
        try:
            return next(self._events)
        except BaseException:
            self._ended = True
            raise

    def _leave_with(self, error: BaseException) -> None:
        """Ends the run with an error of the consumer's, so that sinks learn of it."""
        try:
            self._events.throw(error)
        except BaseException as raised:
            if raised is not error and not isinstance(raised, StopIteration):
                raise


class _Sinks:
    """The sinks of a stream: opened before the first event, closed once."""

    def __init__(self, sinks: Iterable[Sink], config: GenerationConfig) -> None:
        self._config = config
        self._sinks: list[Sink] = []
        self._opening: Opening | None = None
        self._closed = False
        self.add(sinks)

    def add(self, sinks: Iterable[Sink]) -> None:
        sinks = list(sinks)
        checks.rows_stay(self._config, sinks, "sinks")
        for sink in sinks:
            missing = [name for name in ("open", "take", "close") if not callable(getattr(sink, name, None))]
            if missing:
                raise SinkError(f"{sink!r} is not a sink: it has no {' and no '.join(missing)}.")
            if self._closed or self._opening is not None:
                raise SinkError(f"{type(sink).__name__} came too late: the stream has begun already.")
            self._sinks.append(sink)

    def open(self, opening: Opening) -> None:
        self._opening = opening
        for sink in self._sinks:
            sink.open(opening)

    def take(self, event: Event) -> None:
        for sink in self._sinks:
            sink.take(event)

    @property
    def opened(self) -> bool:
        return self._opening is not None

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


def _drive(run: Run, sinks: _Sinks) -> Generator[Event, Any, None]:
    """Runs a pipeline into its sinks; whatever happens, they are closed once and the cache is freed."""
    error: BaseException | None = None
    try:
        for event in run.events():
            if not sinks.opened and (opening := run.opening()) is not None:
                sinks.open(opening)
            sinks.take(event)
            yield event
    except GeneratorExit:
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        _end(run, sinks, error)


def _end(run: Run, sinks: _Sinks, error: BaseException | None) -> None:
    run.result = run.partial(_ending(error))
    try:
        sinks.close(run.result if sinks.opened else None, error)
    finally:
        run.release()


def _ending(error: BaseException | None) -> Finish:
    if error is None:
        return Finish(FinishReason.STOPPED)
    interrupted = isinstance(error, KeyboardInterrupt)
    return Finish(FinishReason.INTERRUPTED if interrupted else FinishReason.ERROR, error)
