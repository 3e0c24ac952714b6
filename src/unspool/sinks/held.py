"""For sinks that can't take anything back: what may yet become void is held until it is certain."""

from __future__ import annotations

from dataclasses import replace

from unspool.events import Phase, Retract
from unspool.records import Event, Opening, Result, Step
from unspool.sinks.base import Sink

__all__ = ["HeldSink"]


class HeldSink:
    """Hands a sink what is certain: what came before the latest `Phase`.

    Args:
        sink: The sink, which never sees a `Retract`.
    """

    retracts = True

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[Event] = []

    def open(self, opening: Opening) -> None:
        """Opens the sink."""
        self._sink.open(opening)

    def take(self, event: Event) -> None:
        """Holds an event, or takes one back."""
        if isinstance(event, Phase):
            self._release()
        if isinstance(event, Retract):
            self._held = [kept for held in self._held if (kept := _without(held, event)) is not None]
        else:
            self._held.append(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Hands over the rest, and closes the sink."""
        self._release()
        self._sink.close(result, error)

    def _release(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._sink.take(event)


def _without(event: Event, void: Retract) -> Event | None:
    """An event without what is void of it; None if all of it is."""
    if not isinstance(event, Step) or event.index < void.index:
        return event
    if void.rows is None:
        return None
    live = event.live.clone()
    live[list(void.rows)] = False
    return replace(event, live=live) if bool(live.any()) else None
