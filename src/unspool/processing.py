"""Calling logits processors, and holding them to what they promise."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from unspool.errors import CriterionError

__all__ = ["run_processors"]


def run_processors(
    processors: Iterable[Any], ids: torch.Tensor, scores: torch.Tensor, context: dict[str, Any]
) -> torch.Tensor:
    """The scores after some processors.

    Args:
        processors: The processors, in order.
        ids: int64 `(rows, length)`.
        scores: float32 `(rows, vocab)`. Processors may write to it.
        context: What a processor may take besides, if it has a parameter of that name.

    Raises:
        CriterionError: A processor returned something that is not a score for every row and token.
    """
    shape = scores.shape
    for processor in processors:
        scores = processor(ids, scores, **_taken(processor, context))
        if isinstance(scores, torch.Tensor) and 2 * len(scores) == shape[0] == 2 * len(ids):
            shape = scores.shape  # guidance made one row of two
        if not isinstance(scores, torch.Tensor) or scores.shape != shape:
            given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else repr(scores)
            raise CriterionError(
                f"The logits processor {type(processor).__name__} must return scores of shape "
                f"{tuple(shape)}; it returned {given}."
            )
    return scores


def _taken(processor: Any, context: dict[str, Any]) -> dict[str, Any]:
    """What of a context a processor takes."""
    if not context:
        return {}
    names = inspect.signature(processor).parameters
    return {name: value for name, value in context.items() if name in names}
