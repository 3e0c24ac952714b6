"""Lets a caller's logits processors start every run as they started the first.

A processor that counts, or remembers what it saw, would carry that from one call into the next. So what a run
changes on a processor is undone when the next run begins. What the caller changes between runs is kept.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unspool.errors import ArgumentError

__all__ = ["Kept", "begin", "end", "equal", "keep", "put"]

Kept = Sequence[tuple[Any, dict[str, Any]]]
"""Some objects, and what each of them held."""


@dataclass(slots=True)
class _Use:
    """How a processor was before its latest run, and after it; `after` is None while the run goes on."""

    before: dict[str, Any]
    after: dict[str, Any] | None = field(default=None)


_uses: weakref.WeakKeyDictionary[Any, _Use] = weakref.WeakKeyDictionary()


def begin(processors: Iterable[Any]) -> None:
    """Puts processors back to where their last run found them, and remembers where this one does.

    Raises:
        ArgumentError: A processor is being used by another run that goes on, and has changed in it.
    """
    for processor in processors:
        with contextlib.suppress(TypeError):  # no attributes, or no weak references: nothing to carry over
            _begin(processor, vars(processor))


def end(processors: Iterable[Any]) -> None:
    """Remembers how a run left its processors."""
    for processor in processors:
        with contextlib.suppress(TypeError):
            use = _uses.get(processor)
            if use is not None:
                use.after = _copy(vars(processor))


def keep(objects: Iterable[Any]) -> Kept:
    """What some objects hold now."""
    return tuple((each, _copy(vars(each))) for each in objects if getattr(each, "__dict__", None))


def put(kept: Kept) -> None:
    """Has objects hold what they did."""
    for each, held in kept:
        now: Any = vars(each)
        now.clear()
        now.update(_copy(held))


def _begin(processor: Any, now: dict[str, Any]) -> None:
    use = _uses.get(processor)
    if use is not None and use.after is None and not equal(use.before, dict(now)):
        raise ArgumentError(
            f"logits_processor holds a {type(processor).__name__} that another stream is using and that has changed "
            f"since. Give each stream its own."
        )
    if use is not None and use.after is not None:
        _undo(now, use.before, use.after)
    _uses[processor] = _Use(_copy(now))


def _undo(now: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Puts back what the last run changed, where the caller has not changed it since."""
    for name in [name for name in now if name in after and equal(now[name], after[name])]:
        if name in before:
            if not equal(now[name], before[name]):
                now[name] = _copy(before[name])
        else:
            del now[name]


def _copy(value: Any) -> Any:
    """A copy of containers and tensors, all the way down; everything else is itself."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()} if type(value) is dict else copy.copy(value)
    if isinstance(value, (list, deque)):
        return type(value)(_copy(item) for item in value)
    return copy.copy(value) if isinstance(value, (set, bytearray)) else value


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, containers and tensors all the way down; other objects are only themselves."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, deque)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, (int, float, str, set, bytes, bytearray, tuple)) and bool(one == other)
