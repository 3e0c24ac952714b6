"""Checks of arguments that are counts."""

from __future__ import annotations

from typing import Any

from unspool.errors import ArgumentError

__all__ = ["lookahead", "snapshot_every"]


def lookahead(value: Any) -> int:
    """The number of steps to make ahead, if it is one.

    Raises:
        ArgumentError: It is not a whole number from 0 on.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"lookahead={value!r} is no number of steps; 0 (none ahead), 1 or more would do.")
    return value


def snapshot_every(value: Any) -> int | None:
    """The number of steps between snapshots, if it is one.

    Raises:
        ArgumentError: It is not a whole number from 1 on.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ArgumentError(f"snapshot_every={value!r} is no number of steps; 1 or more would do, or None for never.")
    return value
