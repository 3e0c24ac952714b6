"""Reading and changing activations while a stream runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Intervention", "Interventions", "find_layer"]

Function = Callable[[torch.Tensor, int], torch.Tensor | None]


@dataclasses.dataclass(slots=True, eq=False)
class Intervention:
    """A function that is called with what a layer gives.

    Attributes:
        module: The layer.
        function: `(hidden, step) -> hidden or None`, with hidden states `(rows, positions, size)`.
        from_step: The first step for which it is called.
        to_step: The first step after it for which it isn't called any more; None if it always is.
    """

    module: nn.Module
    function: Function
    from_step: int = 0
    to_step: int | None = None
    removed: bool = False

    def remove(self) -> None:
        """Calls the function no more."""
        self.removed = True

    def holds(self, step: int) -> bool:
        """Whether the function is called in the forward of a step."""
        return not self.removed and self.from_step <= step and (self.to_step is None or step < self.to_step)

    def hook(self, step: int) -> Callable[..., Any]:
        """What torch calls after the layer."""

        def called(module: nn.Module, inputs: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            changed = self.function(hidden, step)
            if changed is None:
                return None
            if not isinstance(changed, torch.Tensor) or changed.shape != hidden.shape:
                given = tuple(changed.shape) if isinstance(changed, torch.Tensor) else repr(changed)
                raise ArgumentError(
                    f"The function given to intervene must return None or hidden states {tuple(hidden.shape)}; it "
                    f"returned {given}."
                )
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return called


class Interventions:
    """Those of one run. Hooks are on the model only while the run's own forward goes on."""

    def __init__(self, held: list[Intervention] | None = None) -> None:
        self.held = held or []

    def copied(self) -> Interventions:
        """Those of a fork."""
        return Interventions([dataclasses.replace(each) for each in self.held])

    def within(self, call: Callable[..., Any], step: int) -> Callable[..., Any]:
        """A forward, with the functions called in it."""

        def called(**inputs: Any) -> Any:
            with self.around(step):
                return call(**inputs)

        return called

    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Has the functions called in the forward of a step."""
        with contextlib.ExitStack() as stack:
            for each in [each for each in self.held if each.holds(step)]:
                stack.callback(each.module.register_forward_hook(each.hook(step)).remove)
            yield


def find_layer(model: PreTrainedModel, layer: int | str | nn.Module) -> nn.Module:
    """A layer by its number among the decoder's, by its name in the model, or as it is.

    Raises:
        ArgumentError: The model has no such layer.
    """
    if isinstance(layer, nn.Module):
        if all(layer is not module for module in model.modules()):
            raise ArgumentError(f"layer is a {type(layer).__name__} that is no part of {type(model).__name__}.")
        return layer
    if isinstance(layer, str):
        try:
            named: nn.Module = model.get_submodule(layer)
        except AttributeError as error:
            raise ArgumentError(f"layer={layer!r}: {type(model).__name__} has no module of that name.") from error
        return named
    layers = _layers(model)
    if isinstance(layer, bool) or not isinstance(layer, int) or not -len(layers) <= layer < len(layers):
        raise ArgumentError(f"layer={layer!r} is none of the {len(layers)} layers, numbered from 0.")
    return layers[layer]


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder's layers: the first list of as many modules as its config says."""
    config = model.config.get_text_config(decoder=True)
    decoder = model.get_decoder() or model
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return module
    raise ArgumentError(f"{type(model).__name__} has no list of layers; name the module, or give it.")
