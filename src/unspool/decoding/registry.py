"""Decoding methods by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unspool.errors import ArgumentError
from unspool.records import Step

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["Decoding", "DecodingMethod", "Method", "decoding_method", "find_method"]

Decoding = Generator[Step, None, Any]
"""What a decoding method returns when called: a generator of steps."""

DecodingMethod = Callable[["DecodingState"], Decoding]

Rewinds = Literal["ids", "copies"]
"""How a method can be begun anew at an earlier step: from the ids and the cache alone, or from copies of its books."""

HiddenStates = Literal["newest", "all"]
"""Which hidden states a method reads: those of the newest position, or of all, prompt included."""

_BUILT_IN = ("sample", "beam", "assisted", "contrastive", "dola", "diverse", "constrained")


@dataclass(frozen=True, slots=True)
class Method:
    """A decoding method and what it needs of the stages before it.

    Attributes:
        name: Its name.
        decode: The generator function.
        reads_prompt: Whether its first forward reads the prompt, so that the prefill stage leaves it alone.
        rolls_back: Whether it takes tokens back, so that caches must keep what they would drop.
        hidden_states: Which hidden states it reads, so that the model must return them.
        rewinds: How it can be begun anew at an earlier step; None if it can't.
        searches: Makes the books of its search by beams from the state, if it keeps some.
    """

    name: str
    decode: DecodingMethod
    reads_prompt: bool = False
    rolls_back: bool = False
    hidden_states: HiddenStates | None = None
    rewinds: Rewinds | None = None
    searches: Callable[[DecodingState], Any] | None = None


_methods: dict[str, Method] = {}


def decoding_method(
    name: str,
    *,
    reads_prompt: bool = False,
    rolls_back: bool = False,
    hidden_states: HiddenStates | None = None,
    rewinds: Rewinds | None = None,
    searches: Callable[[DecodingState], Any] | None = None,
) -> Callable[[DecodingMethod], DecodingMethod]:
    """Registers a decoding method under a name, for `generate_stream(..., decoding=name)`.

    A decoding method is a generator function over a `DecodingState`. It asks the state for logits, picks tokens
    and yields the step that `state.append(tokens)` makes.

    Args:
        name: The name. A method registered earlier under the same name is replaced.
        reads_prompt: Whether the method's first forward reads the prompt, instead of the prefill stage.
        rolls_back: Whether it takes tokens back, so that caches must keep what they would drop.
        hidden_states: Which hidden states it reads, if any: those of the `"newest"` position, in `state.outputs`
            after `state.forward()`, or `"all"`, with those of the prompt in `state.context`. Steps show them only
            if the caller asks for them, too.
        rewinds: How it can be begun anew at an earlier step, which rewinding, forking and forcing need. `"ids"` if all
            it knows follows from the ids and the cache, and every step is made by `state.append`; `"copies"` if it
            keeps more, all of it with `state.recall`; None if neither.
        searches: For searches by beams: makes its books from the state.

    Example:
        >>> @decoding_method("second_best")
        ... def second_best(state):
        ...     while state.running:
        ...         scores = state.score(state.forward())
        ...         yield state.append(scores.topk(2).indices[:, 1])
    """

    def register(method: DecodingMethod) -> DecodingMethod:
        _methods[name] = Method(name, method, reads_prompt, rolls_back, hidden_states, rewinds, searches)
        return method

    return register


def find_method(decoding: str | DecodingMethod) -> Method:
    """A method given by name or by its function.

    Raises:
        ArgumentError: There is no method of that name.
    """
    if callable(decoding):
        known = next((method for method in _methods.values() if method.decode is decoding), None)
        return known or Method(getattr(decoding, "__name__", type(decoding).__name__), decoding)
    for module in _BUILT_IN:
        importlib.import_module(f"unspool.decoding.{module}")
    if decoding not in _methods:
        names = ", ".join(sorted(_methods))
        raise ArgumentError(f"decoding={decoding!r} is not a known decoding method. Known are: {names}.")
    return _methods[decoding]
