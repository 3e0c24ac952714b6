"""Commands as records, for `Stream.send`: what a web page or another program asked for, to be carried out later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unspool.texts import Tokens

__all__ = ["Command", "Force", "Replace", "Rewind", "Stop", "Update"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends some rows; see `Stream.stop`."""

    rows: int | Iterable[int] | None = None


@dataclass(frozen=True, slots=True)
class Force:
    """Sets the next tokens of some rows; see `Stream.force`."""

    tokens: Tokens | Mapping[int, Tokens]
    rows: int | Iterable[int] | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """Takes another token at the latest step; see `Stream.replace`."""

    tokens: Tokens | Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Goes back some steps; see `Stream.rewind`."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Update:
    """Changes settings from the next step on; see `Stream.update`."""

    settings: Mapping[str, Any]
    rows: int | Iterable[int] | None = None


Command = Stop | Force | Replace | Rewind | Update
