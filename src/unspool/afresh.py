"""Lets a caller's logits processors start every run as they started the first.

A processor that counts, or remembers what it saw, would carry that from one call into the next. So what a run
changes on a processor is undone when the next run begins. What the caller changes between runs is kept.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from unspool.errors import ArgumentError

__all__ = ["begin", "end"]


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
                use.after = dict(vars(processor))


def _begin(processor: Any, now: dict[str, Any]) -> None:
    use = _uses.get(processor)
    if use is not None and use.after is None and not _same(use.before, now):
        raise ArgumentError(
            f"logits_processor holds a {type(processor).__name__} that another stream is using and that has changed "
            f"since. Give each stream its own."
        )
    if use is not None and use.after is not None:
        for name, value in use.before.items():
            if name in now and name in use.after and now[name] is use.after[name]:
                now[name] = _copy(value)
    _uses[processor] = _Use({name: _copy(value) for name, value in now.items()})


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, (list, dict, set, deque, bytearray)) else value


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    if before.keys() != now.keys():
        return False
    for name, value in before.items():
        other = now[name]
        if isinstance(value, torch.Tensor):
            if not isinstance(other, torch.Tensor) or value.shape != other.shape or not torch.equal(value, other):
                return False
        elif value is not other and not (
            isinstance(value, (int, float, str, list, dict, set, deque)) and value == other
        ):
            return False
    return True
