"""Forks that are pulled side by side share their forwards.

When one fork of several needs the model, those beside it that stand at the same step will need it next. So one forward
is made for all of them, over a past that is there once, and each finds its part when its turn comes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.layers import BranchLayer, BundledLayer

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

    from unspool.state import DecodingState

__all__ = ["Siblings"]


class Siblings:
    """The forks that were made at once. Holds none of them alive."""

    def __init__(self, states: Sequence[DecodingState]) -> None:
        self._states = [weakref.ref(state) for state in states]
        self._bench: dict[int, torch.Tensor] = {}

    def forward(self, state: DecodingState, inputs: dict[str, Any]) -> ModelOutput | None:
        """The outputs of a fork's next forward, made together with those of others; None if it is alone.

        Args:
            state: The fork whose turn it is.
            inputs: What its forward takes.
        """
        fork = _Fork.of(state, inputs)
        if fork is None:
            return None
        beside = (other() for other in self._states)
        waiting = (it for it in beside if it is not None and it is not state and it.waits_like(state))
        others = (_Fork.of(it, it.next_inputs()) for it in waiting)
        forks = [fork, *(other for other in others if other is not None and other.fits(fork))]
        return _together(forks, self._bench) if len(forks) > 1 else None


class _Fork:
    """A fork whose forward can be made together with others."""

    def __init__(self, state: DecodingState, inputs: dict[str, Any], name: str, layers: list[BranchLayer]) -> None:
        self.state, self.inputs, self.name, self.layers = state, inputs, name, layers

    @classmethod
    def of(cls, state: DecodingState, inputs: dict[str, Any]) -> _Fork | None:
        """None if the fork must go by itself."""
        carry = state.carried
        found = carry.state()
        plain = carry.direct and carry.fixed is not None and not carry.kept and carry.call is state.plan.model
        if not plain or found is None or state.plan.request.interventions.held:
            return None
        name, cache = found
        layers = cache.layers if type(cache) is DynamicCache else []
        if not layers or not all(isinstance(it, BranchLayer) and it.has_room_apart() for it in layers):
            return None
        return cls(state, inputs, name, layers)

    def fits(self, other: _Fork) -> bool:
        """Whether the two share their past, and take inputs of the same kinds."""
        pairs = zip(self.layers, other.layers, strict=True)
        return self._kinds() == other._kinds() and all(a.past[0] is b.past[0] and a.count == b.count for a, b in pairs)  # type: ignore[index]

    def _kinds(self) -> dict[str, Any]:
        rest = {name: value for name, value in self.inputs.items() if name != self.name}
        return {name: value.shape if isinstance(value, torch.Tensor) else value for name, value in rest.items()}


def _together(forks: Sequence[_Fork], bench: dict[int, torch.Tensor]) -> ModelOutput:
    """One forward for all; the outputs of the first, while each of the others holds its own."""
    first = forks[0]
    cache = DynamicCache()
    cache.layers = [BundledLayer(layers, bench) for layers in zip(*(fork.layers for fork in forks), strict=True)]
    inputs = {name: _joined([fork.inputs[name] for fork in forks]) for name in first.inputs if name != first.name}
    outputs = first.state.run({**inputs, first.name: cache}, decoding=True)
    rows = first.state.ids.shape[0]
    index = torch.arange(rows * len(forks), device=first.state.ids.device)
    parts = [outputs_of.pick(outputs, mine, len(index)) for mine in torch.split(index, rows)]
    for part in parts:
        outputs_of.drop(part, bridge.STATE_NAMES)
    for fork, part in zip(forks[1:], parts[1:], strict=True):
        fork.state.take_part(part, first.state.width)
    own: ModelOutput = parts[0]
    return own


def _joined(values: list[Any]) -> Any:
    return torch.cat(values) if isinstance(values[0], torch.Tensor) else values[0]
