"""Models that generate by a part of theirs, which is a model of its own."""

from __future__ import annotations

from typing import Any

__all__ = ["generating_part", "generating_part_name"]

_PARTS = {"RagSequenceForGeneration": "generator"}


def generating_part_name(model: Any) -> str | None:
    """What the part of a model that makes its tokens is called; None if it makes them itself."""
    return next((_PARTS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _PARTS), None)


def generating_part(model: Any) -> Any:
    """What makes the tokens of a model: the model itself, or the part that its `generate` calls."""
    name = generating_part_name(model)
    return model if name is None else getattr(model, name)
