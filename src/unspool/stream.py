"""What users iterate."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from unspool.ahead import Ahead, Made
from unspool.ambient import autocast_now
from unspool.control.orders import Ordered
from unspool.errors import SinkError, StreamError
from unspool.fanout import AnySink, SinkGroup, Source, drive
from unspool.records import Event, Finish, FinishReason, Result, Step, TextChunk
from unspool.sinks.base import StopStream
from unspool.sinks.waited import AsyncSinks, is_async
from unspool.stages import counts
from unspool.stepping import stepper_of
from unspool.views import Events, Reader, Steps, View

__all__ = ["Stream"]

T = TypeVar("T")


class Stream(Ordered, Iterator[Step], AsyncIterator[Step]):
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

    def __init__(self, source: Source, sinks: Iterable[AnySink] = (), *, lookahead: int = 1) -> None:
        self._source: Source = source
        self._ahead: Ahead | None = None
        self._ended = False
        self._leave = False
        self._told: deque[Event] = deque()  # by commands, and not read yet
        self._last: Step | None = None
        self._given: Step | None = None
        self._thread: int | None = None
        self._waited = AsyncSinks()
        self._sinks = SinkGroup((), source.config)
        self._add(sinks)
        self._events = drive(source, self._sinks)
        # Also when the interpreter ends: a generator that is only torn down then doesn't close anything.
        self._left_behind: weakref.finalize[..., Any] = weakref.finalize(self, self._events.close)
        self._steps = Steps()
        self._lookahead = counts.lookahead(lookahead)

    def __next__(self) -> Step:
        """The next step.

        Raises:
            StopIteration: All rows have ended, or the stream was closed.
            StreamError: The stream is iterated with `async for`.
        """
        while True:
            event = self.next_event()
            if isinstance(event, Step) and event is not self._given:  # that one has been returned
                return event

    def steps(self, count: int) -> Iterator[Step]:
        """The next steps, `count` at most; the stream can be gone on with after them."""
        return itertools.islice(self, count)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        """The next step, made on the model's thread.

        Raises:
            StopAsyncIteration: All rows have ended, or the stream was closed.
            anyio.BusyResourceError: Another task is waiting for it.
        """
        while True:
            made = await self.next_made(self._steps)
            if made.error is not None:
                raise made.error
            if made.items and made.items[0] is not self._given:
                step: Step = made.items[0]
                return step
            if made.over:
                raise StopAsyncIteration

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

        tokenizer = tokenizer if tokenizer is not None else self._source.tokenizer
        return View(self, TextReader(self._source, tokenizer, skip_special_tokens=skip_special_tokens))

    def _add(self, sinks: Iterable[AnySink]) -> None:
        """Adds sinks to those that are called, or to those that are awaited."""
        given = list(sinks)
        waited = [sink for sink in given if is_async(sink)]
        self._sinks.add(sink for sink in given if not is_async(sink))
        if waited and self._ahead is not None:
            raise SinkError(f"{type(waited[0]).__name__} came too late: the stream has begun already.")
        self._waited.sinks.extend(waited)

    def records(
        self,
        *,
        tokenizer: Any = None,
        records: Literal["steps", "text"] = "steps",
        fields: Collection[str] | None = None,
        top_logprobs: int = 0,
        tells_errors: bool = True,
    ) -> View[dict[str, Any]]:
        """The events as plain data, which JSON can say, for `for` and `async for`.

        Args:
            tokenizer: As for `JsonlSink`, like the others.
            records: As for `JsonlSink`.
            fields: As for `JsonlSink`.
            top_logprobs: As for `JsonlSink`.
            tells_errors: Whether errors are told by kind and message; if not, only that there was one.

        Raises:
            ArgumentError: An argument is wrong.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=2)
            >>> [record["type"] for record in stream.records(fields=["tokens"])]
            ['start', 'prefill', 'prefill', 'step', 'step', 'end']
        """
        from unspool.sinks.lines import RecordReader, Records

        made = Records(
            tokenizer=tokenizer, records=records, fields=fields, top_logprobs=top_logprobs, tells_errors=tells_errors
        )
        return View(self, RecordReader(self._source, made))

    def through(self, *sinks: AnySink) -> Self:
        """Has some sinks take what comes by, while whoever iterates sees it as well.

        Returns:
            The stream itself.

        Raises:
            SinkError: One is no sink, or the stream has begun.

        Example:
            >>> import io
            >>> from unspool import generate_stream
            >>> from unspool.sinks import TextSink
            >>> sink = TextSink(io.StringIO(), tokenizer=tiny_tokenizer())
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3)
            >>> [step.index for step in stream.through(sink)]
            [0, 1, 2]
        """
        self._add(sinks)
        return self

    def to(self, *sinks: AnySink) -> Result:
        """Runs the stream to its end into some sinks.

        Returns:
            The result.
        """
        self._add(sinks)
        for _ in self.events():
            pass
        result = self.result
        assert result is not None  # a run that reached its end has a state
        return result

    async def ato(self, *sinks: AnySink) -> Result:
        """Runs the stream to its end into some sinks, on the model's thread.

        Returns:
            The result.
        """
        self._add(sinks)
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
        return self._source.partial(Finish(FinishReason.STOPPED))

    def close(self) -> None:
        """Leaves the stream: closes the sinks and frees the cache. Safe to call twice, and from another thread.

        From another thread, while a step is being made, the stream is left when that step is done. So is one that is
        iterated with `async for`; `aclose()` waits for that.
        """
        self._leave = True
        if self._ahead is not None:
            self._ahead.leave()
            return
        self._source.interrupt()
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
        try:
            if self._ahead is None:
                self.__exit__(None if error is None else type(error), error, None)
            else:
                await self._ahead.aclose(error)
        finally:
            await self._waited.close(self._source, error)

    async def next_made(self, reader: Reader[Any]) -> Made:
        """The next event of which a reader makes something, made on the model's thread; or the end."""
        if self._told:
            event = self._told.popleft()
            made = Made(reader, event, reader.take(event))
        else:
            made = await self._start_ahead().next(reader) if not self._over() else Made(reader, None, [], over=True)
            self._last = made.event if isinstance(made.event, Step) else None
            self._thread, self._ended = threading.get_ident(), self._ended or made.over
        if self._waited:
            await self._hand(made)
        return made

    def _over(self) -> bool:
        return self._ahead is None and (self._leave or self._ended)

    def _start_ahead(self) -> Ahead:
        """What makes the steps on the model's thread."""
        if self._ahead is None:
            home = self._source.home
            modes = autocast_now(getattr(home, "device", None))
            self._ahead = Ahead(
                self._events, stepper_of(home), self._lookahead, modes, self._source.interrupt, every=bool(self._waited)
            )
            self._left_behind.detach()
            self._left_behind = weakref.finalize(self, Ahead.leave, self._ahead)
        return self._ahead

    async def _hand(self, made: Made) -> None:
        """Hands what was made to the sinks that are awaited; one that fails ends the stream."""
        try:
            if made.event is not None:
                await self._waited.take(self._source, made.event)
            elif made.over:
                await self._waited.close(self._source, made.error)
        except StopStream:
            await self._aclose(None)
        except BaseException as error:
            await self._aclose(error)
            raise

    def next_event(self) -> Event:
        """The next event, made here and now.

        Raises:
            StopIteration: There is none.
            StreamError: The stream is iterated with `async for`.
        """
        if self._waited:
            raise SinkError(f"{self._waited} must be awaited; iterate the stream with `async for`.")
        if self._ahead is not None:
            raise StreamError("This stream is iterated with `async for`; go on with that, or make another.")
        if self._told:
            return self._told.popleft()
        if self._leave:
            self.close()
            raise StopIteration
        self._last, self._thread = None, threading.get_ident()
        try:
            event = next(self._events)
        except BaseException:
            self._ended = True
            raise
        if isinstance(event, Step):
            self._last = event
        return event

    def _leave_with(self, error: BaseException) -> None:
        """Ends the run with an error of the consumer's, so that sinks learn of it."""
        try:
            self._events.throw(error)
        except BaseException as raised:
            if raised is not error and not isinstance(raised, StopIteration):
                raise
