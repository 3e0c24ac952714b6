"""Decoding methods by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from unspool.errors import ArgumentError
from unspool.records import Step

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["Decoding", "DecodingMethod", "decoding_method", "find_method"]

Decoding = Generator[Step, None, Any]
"""What a decoding method returns when called: a generator of steps."""

DecodingMethod = Callable[["DecodingState"], Decoding]

_methods: dict[str, DecodingMethod] = {}
_BUILT_IN = ("sample", "beam")


def decoding_method(name: str) -> Callable[[DecodingMethod], DecodingMethod]:
    """Registers a decoding method under a name, for `generate_stream(..., decoding=name)`.

    A decoding method is a generator function over a `DecodingState`. It asks the state for logits, picks tokens
    and yields the step that `state.append(tokens)` makes.

    Args:
        name: The name. A method registered earlier under the same name is replaced.

    Example:
        >>> @decoding_method("second_best")
        ... def second_best(state):
        ...     while state.running:
        ...         scores = state.score(state.forward())
        ...         yield state.append(scores.topk(2).indices[:, 1])
    """

    def register(method: DecodingMethod) -> DecodingMethod:
        _methods[name] = method
        return method

    return register


def find_method(decoding: str | DecodingMethod) -> tuple[str, DecodingMethod]:
    """The name and function of a method given by either.

    Raises:
        ArgumentError: There is no method of that name.
    """
    if callable(decoding):
        return getattr(decoding, "__name__", type(decoding).__name__), decoding
    for module in _BUILT_IN:
        importlib.import_module(f"unspool.decoding.{module}")
    if decoding not in _methods:
        known = ", ".join(sorted(_methods))
        raise ArgumentError(f"decoding={decoding!r} is not a known decoding method. Known are: {known}.")
    return decoding, _methods[decoding]
