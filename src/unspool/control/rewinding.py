"""Going back: by cutting what has grown since, or from a snapshot."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

from unspool import afresh, bridge
from unspool import cache as caches
from unspool.control.copying import restore
from unspool.control.timeline import Mark, set_random_state
from unspool.errors import CacheError, StreamError

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["cut", "go_back", "rewinds", "why_uncuttable"]

_GROWING = frozenset(
    prefix + name
    for prefix in ("", "decoder_", "mm_", "moe_mm_")
    for name in ("attention_mask", "position_ids", "token_type_ids")
)
"""Keywords that get one position longer with each token."""


def go_back(state: DecodingState, steps: int) -> None:
    """Makes a state what it was after so many steps.

    Raises:
        StreamError: The method can't go back, or the step is too long ago.
        CacheError: The cache can't be cut, and there is no snapshot.
    """
    if not rewinds(state):
        raise StreamError(f"{_name(state)} can't be rewound: more of it depends on what came before than is kept.")
    mark, taken = state.timeline.find(steps), state.timeline.nearest(steps)
    reason = "the step is too long ago" if mark is None else why_uncuttable(state, mark)
    if mark is not None and reason is None:
        cut(state, mark)
    elif taken is not None:
        restore(state, taken)
        _replay(state, steps)
    else:
        raise CacheError(f"The stream can't be rewound: {reason}. Pass snapshot_every= to keep copies to go back to.")
    state.timeline.forget(steps)


def rewinds(state: DecodingState) -> bool:
    """Whether the method can be begun anew at an earlier step, or in a copy of the state."""
    method = state.plan.method
    return method.rewinds is not None and not (method.reads_prompt and state.config.do_sample)


def why_uncuttable(state: DecodingState, mark: Mark) -> str | None:
    """Why a state can't be cut back to a mark; None if it can."""
    carry, method = state.carried, state.plan.method
    held = carry.cache
    if method.rewinds != "ids":
        return f"{_name(state)} keeps books that can't be cut"
    if held is not None and (reason := caches.why_uncuttable(held)):
        return reason
    if any(isinstance(each, bridge.REMEMBERING) for each in mark.built):
        return "a logits processor remembers what it saw"
    kept = carry.kept.held()
    if len(kept) != len(mark.kept) or any(now is not then for now, then in zip(kept, mark.kept, strict=True)):
        return "the model keeps a state on itself"
    return None if mark.steps == 0 or carry.direct else _changing(state, carry.kwargs)


def _changing(state: DecodingState, kwargs: dict[str, Any]) -> str | None:
    """Why the keywords can't be cut."""
    for name, value in kwargs.items():
        if name in bridge.STATE_NAMES or not isinstance(value, torch.Tensor):
            continue
        grows = name in _GROWING and value.shape[-1] in (state.length, state.ids.shape[1])
        if not grows and value is not state.timeline.kwargs.get(name):
            return f"the model's {name} changes from step to step"
    return None


def cut(state: DecodingState, mark: Mark) -> None:
    """Cuts a state back to a mark."""
    carry, timeline, count = state.carried, state.timeline, state.steps - mark.steps
    found = carry.state()
    if found is not None and isinstance(found[1], Cache):
        excess = caches.length(found[1]) - _cached(state, mark)
        if excess > 0:
            caches.crop(found[1], excess)
    if mark.steps == 0:
        carry.kwargs = {**timeline.kwargs, **({found[0]: found[1]} if found else {})}
        carry.fixed = carry.position = None
        state.hold_again(timeline.outputs, timeline.width)
    else:
        state.hold_again(None, state.width)
        carry.kwargs = {name: _shorter(state, name, value, count) for name, value in carry.kwargs.items()}
        carry.position = None if carry.position is None else carry.position - count
    state.ids = state.ids[:, : state.ids.shape[1] - count].contiguous()
    put_books(state, mark)
    set_random_state(state, mark.random)
    afresh.put(mark.users)
    state.memory = {}
    state.turn += 1


def _cached(state: DecodingState, mark: Mark) -> int:
    """How many positions the cache held at a mark."""
    if mark.steps:
        return state.length - (state.steps - mark.steps) - 1
    again = state.timeline.outputs is None and not state.plan.method.reads_prompt
    return state.timeline.cached - again


def put_books(state: DecodingState, mark: Mark) -> None:
    """Makes the books what they were at a mark."""
    names = ("steps", "forwards", "drafted", "accepted", "live", "running", "finishes", "stopped", "forced")
    for name in (*names, "plan", "config", "built", "endings", "pad", "row_configs"):
        setattr(state, name, getattr(mark, name))
    state.processors = mark.built
    state.history = None if state.history is None else state.history[: mark.history]


def _shorter(state: DecodingState, name: str, value: Any, count: int) -> Any:
    """A keyword without its last positions, if it has one for each token."""
    if name not in _GROWING or not isinstance(value, torch.Tensor):
        return value
    if value.shape[-1] not in (state.length, state.ids.shape[1]):
        return value
    return value[..., : value.shape[-1] - count]


def _replay(state: DecodingState, steps: int) -> None:
    """Makes steps again, up to one."""
    if state.steps == steps:
        return
    method = state.plan.method.decode(state)
    with contextlib.closing(method):
        while state.steps < steps:
            next(method)


def _name(state: DecodingState) -> str:
    how = " with sampling" if state.config.do_sample and state.plan.method.reads_prompt else ""
    return state.plan.method.name + how
