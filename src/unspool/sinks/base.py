"""What a sink is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from unspool.records import Event, Opening, Result

__all__ = ["Sink"]


@runtime_checkable
class Sink(Protocol):
    """Takes the events of one stream: opened once, fed in order, closed exactly once.

    Any object with these three methods is a sink. An exception raised in `open` or `take` ends the stream and
    reaches whoever iterates it; all sinks are still closed.

    Example:
        >>> class Count:
        ...     steps = 0
        ...     def open(self, opening): pass
        ...     def take(self, event): self.steps += hasattr(event, "tokens")
        ...     def close(self, result, error): print(f"{self.steps} steps")
        >>> isinstance(Count(), Sink)
        True
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
