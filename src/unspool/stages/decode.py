"""Stage 5: runs the decoding method."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from unspool.ambient import without_gradients
from unspool.control.copying import snapshot_if_due
from unspool.events import Phase
from unspool.plan import Plan
from unspool.records import Finish, FinishReason, Result, Step
from unspool.state import DecodingState

__all__ = ["decode", "decode_nothing"]


@without_gradients
def decode(plan: Plan, state: DecodingState) -> Generator[Step | Phase, Any, Result]:
    """Runs the plan's decoding method over the state.

    Yields:
        A step for each new token position. Before the first one, a `Phase` named `"compile"` if the forward is compiled
        in this run: the second step then takes a while.
    """
    if state.carried.uncompiled:
        yield Phase("compile", 0)
    yield from _decoded(plan, state)
    return state.result(Finish(FinishReason.STOPPED))


def _decoded(plan: Plan, state: DecodingState) -> Generator[Step, Any, None]:
    """The method's steps; it begins anew whenever the state was taken elsewhere in between."""
    state.timeline.begin(state)
    while True:
        turn, steps = state.turn, plan.method.decode(state)
        with contextlib.closing(steps):
            snapshot_if_due(state)
            for step in steps:
                yield step
                if state.turn != turn:
                    break
                snapshot_if_due(state)
            else:
                return


def decode_nothing(plan: Plan, state: DecodingState) -> Generator[Step, Any, Result]:
    """Ends where the prompt does, for who only wants it read."""
    return state.result(Finish(FinishReason.STOPPED))
    yield
