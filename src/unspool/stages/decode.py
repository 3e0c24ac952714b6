"""Stage 5: runs the decoding method."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from unspool.ambient import without_gradients
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
    yield from plan.method.decode(state)
    return state.result(Finish(FinishReason.STOPPED))


def decode_nothing(plan: Plan, state: DecodingState) -> Generator[Step, Any, Result]:
    """Ends where the prompt does, for who only wants it read."""
    return state.result(Finish(FinishReason.STOPPED))
    yield
