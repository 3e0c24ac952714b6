"""How a stream has commands carried out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from unspool.control.verbs import Steered
from unspool.errors import StreamError, UnsupportedError
from unspool.events import PAUSE
from unspool.records import Event, Step

if TYPE_CHECKING:
    from unspool.control.pilot import Pilot
    from unspool.fanout import SinkGroup
    from unspool.state import DecodingState

__all__ = ["Ordered"]

T = TypeVar("T")


class Ordered(Steered):
    """What a stream needs to have commands carried out. The base of `Stream`, which holds what they work on."""

    _source: Any
    _sinks: SinkGroup
    _events: Generator[Event, Any, None]
    _told: deque[Event]
    _last: Step | None
    _given: Step | None
    _thread: int | None
    _ahead: Any
    _waited: Any
    _ended: bool
    _leave: bool
    _lookahead: int

    def next_event(self) -> Event:
        """The next event."""
        raise NotImplementedError

    def _latest(self) -> Step | None:
        return self._last

    def _order(self, order: Callable[[Pilot], tuple[list[Event], T]], *, retracts: bool = False) -> T:
        self._must_take_orders()
        if retracts:
            self._sinks.must_retract(self._waited.sinks)
        make = getattr(self._source, "pilot", None)
        if make is None:
            raise UnsupportedError("There is no model behind this stream, which could be given commands.")
        if self._thread is None:
            self._begin()
        with torch.inference_mode(False), torch.no_grad():
            events, made = order(make())
        for event in events:
            self._last = event if isinstance(event, Step) else None
            self._sinks.take(event)
        self._given = made if isinstance(made, Step) else self._given
        self._told.extend(events)
        return made

    def _forked(self, states: list[DecodingState]) -> list[Any]:
        run: Any = self._source
        make: Any = type(self)
        return [make(run.branch(state), lookahead=self._lookahead) for state in states]

    def _model_and_interventions(self) -> tuple[Any, Any]:
        plan = getattr(self._source, "plan", None)
        if plan is None or plan.own_loop:
            raise UnsupportedError("There is no forward of ours behind this stream; use torch's own hooks.")
        if self._ended or self._leave:
            raise StreamError("The stream is over; no forward comes any more.")
        return plan.model, plan.request.interventions

    def _must_take_orders(self) -> None:
        if self._ended or self._leave:
            raise StreamError("The stream is over; it takes no commands any more.")
        if self._ahead is not None and not self._ahead.idle():
            raise StreamError(
                f"Steps may have been made ahead of the one you hold (lookahead={self._lookahead}); a stream that is "
                f"awaited takes commands with lookahead=0, between two steps."
            )
        other = self._thread is not None and self._thread != threading.get_ident()
        if other or getattr(self._events, "gi_running", False):
            raise StreamError("A stream takes commands between two steps, from the thread that iterates it.")

    def _begin(self) -> None:
        """Reads the prompt, and stops before the first step."""
        if self._ahead is not None or self._waited:
            raise StreamError("A stream that is awaited takes commands once its first step has come.")
        self._source.pausing = True
        events: list[Event] = []
        while (event := self.next_event()) is not PAUSE:
            events.append(event)
        self._told.extend(events)
