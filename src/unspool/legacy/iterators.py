"""transformers' streamers that are iterated, on a stream that they pull themselves."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import anyio

from unspool.ahead import from_thread
from unspool.legacy.printer import TextStreamer
from unspool.records import Result
from unspool.views import Events

if TYPE_CHECKING:
    from unspool.stream import Stream

__all__ = ["AsyncTextIteratorStreamer", "TextIteratorStreamer"]

_END = object()


class _Buffered(TextStreamer):
    """Text that waits to be iterated."""

    def __init__(
        self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any
    ) -> None:
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.timeout = timeout
        self._stream: Stream | None = None

    def bind(self, stream: Stream) -> None:
        """Lets whoever iterates this pull a stream that feeds it."""
        self._stream = stream

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Keeps text for whoever iterates."""
        if text:
            self._add(text)
        if stream_end:
            self._add(_END)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Passes on the rest, and what ended the stream."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close(result, error)
        self._add(_END if error is None else error)

    def _add(self, item: Any) -> None:
        raise NotImplementedError


class TextIteratorStreamer(_Buffered):
    """Text to be iterated: a drop-in for the class of that name in transformers.

    Given to `generate_stream(..., streamer=...)`, it needs no thread: each `next()` pulls the stream until there is
    text. Given to `generate()` in a thread of yours, as transformers wants it, it works that way. An error in the run
    is raised here, as itself, after the text before it.

    Args:
        tokenizer: The model's tokenizer.
        skip_prompt: Whether the prompt is left out.
        timeout: Seconds to wait for text from another thread, after which `queue.Empty` is raised; None to wait on.
        **decode_kwargs: As for `TextStreamer`.

    Example:
        >>> from unspool import generate_stream
        >>> streamer = TextIteratorStreamer(tiny_tokenizer(), skip_prompt=True)
        >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3, streamer=streamer)
        >>> list(streamer)
        ['<start>', ' w106', ' w49']
    """

    def __init__(
        self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any
    ) -> None:
        super().__init__(tokenizer, skip_prompt, timeout, **decode_kwargs)
        self.text_queue: queue.Queue[Any] = queue.Queue()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """The next piece of text.

        Raises:
            StopIteration: The stream is over.
            queue.Empty: Nothing came from another thread within `timeout`.
            BaseException: What went wrong in the run.
        """
        item = self._next_item()
        if item is _END:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        text: str = item
        return text

    def _next_item(self) -> Any:
        while self._stream is not None and self.text_queue.empty():
            try:
                self._stream.next_event()
            except StopIteration:
                self._stream = None
            except ValueError:  # another thread is stepping it
                break
            except BaseException:  # it is in the queue, after the text before it
                self._stream = None
        return self.text_queue.get(timeout=self.timeout)

    def _add(self, item: Any) -> None:
        self.text_queue.put(item)


class AsyncTextIteratorStreamer(_Buffered):
    """Text to be iterated by `async for`: a drop-in for the class of that name in transformers, on asyncio and trio.

    Given to `generate_stream(..., streamer=...)`, it needs no thread of yours: the model is stepped on its own. Given
    to `generate()` in a thread of yours, it works as in transformers.

    Args:
        tokenizer: The model's tokenizer.
        skip_prompt: Whether the prompt is left out.
        timeout: Seconds to wait for text, after which `TimeoutError` is raised; None to wait on.
        **decode_kwargs: As for `TextStreamer`.
    """

    def __init__(
        self, tokenizer: Any, skip_prompt: bool = False, timeout: float | None = None, **decode_kwargs: Any
    ) -> None:
        super().__init__(tokenizer, skip_prompt, timeout, **decode_kwargs)
        self._items: deque[Any] = deque()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """The next piece of text.

        Raises:
            StopAsyncIteration: The stream is over.
            TimeoutError: Nothing came within `timeout`.
            BaseException: What went wrong in the run.
        """
        with anyio.fail_after(self.timeout):
            item = await self._next_item()
        if item is _END:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        text: str = item
        return text

    async def _next_item(self) -> Any:
        while self._stream is not None and not self._items:
            try:
                made = await self._stream.next_made(Events())
            except Exception:
                self._stream = None
                raise
            if made.over:
                self._stream = None
        while True:
            woken = anyio.Event()
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._wake = from_thread(woken.set)
            await woken.wait()

    def _add(self, item: Any) -> None:
        with self._lock:
            self._items.append(item)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()
