"""How much a client may ask for, and how many clients at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyLimit", "Limits", "Slots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one request may ask for; None for no limit.

    Attributes:
        prompt_tokens: Tokens of a prompt.
        new_tokens: New tokens.
        stop_strings: Stop strings.
        stop_length: Characters of a stop string.

    Example:
        >>> Limits(new_tokens=100).check(new_tokens=500)
        Traceback (most recent call last):
        starlette.exceptions.HTTPException: 422: max_new_tokens=500 is more than the 100 that are allowed here.
    """

    prompt_tokens: int | None = None
    new_tokens: int | None = None
    stop_strings: int | None = 16
    stop_length: int | None = 256

    def check(self, *, prompt_tokens: int = 0, new_tokens: int | None = None, stop_strings: Sequence[str] = ()) -> None:
        """Refuses what is too much.

        Raises:
            HTTPException: 413 for a prompt that is too long, 422 for the others; `detail` gives the reason.
        """
        if self.prompt_tokens is not None and prompt_tokens > self.prompt_tokens:
            raise HTTPException(413, f"The prompt has {prompt_tokens} tokens; {self.prompt_tokens} are allowed here.")
        if self.new_tokens is not None and (new_tokens is None or new_tokens > self.new_tokens):
            given = "no max_new_tokens" if new_tokens is None else f"max_new_tokens={new_tokens}"
            raise HTTPException(422, f"{given} is more than the {self.new_tokens} that are allowed here.")
        if new_tokens is not None and new_tokens < 1:
            raise HTTPException(422, f"max_new_tokens={new_tokens} asks for nothing; give 1 or more.")
        if self.stop_strings is not None and len(stop_strings) > self.stop_strings:
            raise HTTPException(422, f"{len(stop_strings)} stop strings; {self.stop_strings} are allowed here.")
        longest = max(map(len, stop_strings), default=0)
        if self.stop_length is not None and longest > self.stop_length:
            raise HTTPException(422, f"A stop string of {longest} characters; {self.stop_length} are allowed here.")


class Slots:
    """Room for so many streams at once. Whoever finds none is told to come back, instead of waiting in a queue.

    Args:
        count: How many streams.
        retry_after: Seconds after which a client should try again.
    """

    def __init__(self, count: int, *, retry_after: int = 5) -> None:
        self.free = count
        self._retry_after = retry_after
        self._lock = threading.Lock()

    def take(self) -> Callable[[], None]:
        """Takes a place.

        Returns:
            What gives it back; calling it again does nothing.

        Raises:
            HTTPException: 503 with `Retry-After`: there is none.
        """
        with self._lock:
            if not self.free:
                headers = {"Retry-After": str(self._retry_after)}
                raise HTTPException(503, "Too many streams are running; try again later.", headers)
            self.free -= 1
        taken = [None]

        def give_back() -> None:
            with self._lock:
                if taken:
                    taken.pop()
                    self.free += 1

        return give_back


class BodyLimit:
    """Middleware that refuses request bodies of more than so many bytes, by 413, before they are read.

    Args:
        app: The application.
        max_bytes: The most bytes of a body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._most = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._most:
            await _refuse(send, self._most)
            return
        count, begun = 0, False

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._most:
                raise _TooLong
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLong:
            if not begun:
                await _refuse(send, self._most)


class _TooLong(HTTPException):
    """A body turns out to be too long; an HTTP error, so that what reads bodies lets it pass."""

    def __init__(self) -> None:
        super().__init__(413, "The request body is too long.")


async def _refuse(send: Send, most: int) -> None:
    body = f'{{"detail":"The request body is longer than the {most} bytes that are allowed here."}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
