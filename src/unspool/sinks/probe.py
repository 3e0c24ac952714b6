"""Keeps what happens inside a model, for those who study it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

import torch

from unspool.errors import ArgumentError, SinkError
from unspool.records import Event, Opening, Result, Step

if TYPE_CHECKING:
    import numpy

__all__ = ["ProbeSink"]

Reduce = Literal["last", "mean"] | Callable[[torch.Tensor], torch.Tensor] | None


class ProbeSink:
    """Keeps hidden states or attentions of chosen layers, step by step, in main memory.

    What is kept of a step is copied off the device before the next is made, so memory there stays flat. Ask for the
    tensors in the call, by `output_hidden_states=True` or `output_attentions=True`.

    Args:
        hidden_states: The layers whose hidden states are kept; 0 are the embeddings, -1 is the last layer.
        attentions: The layers whose attentions are kept, from 0.
        reduce: What is kept of the positions that a step covers (all of the prompt in the first one): `"last"` the last
            position, `"mean"` their mean, a function what it returns, None everything. A function gets
            `(rows, positions, size)` of hidden states or `(rows, heads, positions, keys)` of attentions.

    Attributes:
        parents: Under beams, for each step, the row that each row continues: what was kept is in the order of the rows
            before the step.

    Raises:
        ArgumentError: No layer is named, or `reduce` is unknown.

    Example:
        >>> from unspool import generate_stream
        >>> probe = ProbeSink(hidden_states=[-1])
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> result = generate_stream(tiny_model(), ids, max_new_tokens=4, output_hidden_states=True).to(probe)
        >>> probe.numpy()["hidden_states.-1"].shape  # steps, rows, size
        (4, 1, 32)
    """

    def __init__(
        self,
        *,
        hidden_states: Collection[int] = (),
        attentions: Collection[int] = (),
        reduce: Reduce = "last",
    ) -> None:
        if not hidden_states and not attentions:
            raise ArgumentError("ProbeSink keeps nothing; name layers, as in hidden_states=[-1].")
        if reduce not in ("last", "mean", None) and not callable(reduce):
            raise ArgumentError(f"reduce={reduce!r} is unknown; 'last', 'mean', a function or None would do.")
        self._layers = {"hidden_states": tuple(hidden_states), "attentions": tuple(attentions)}
        self._reduce = reduce
        self._kept: dict[str, list[torch.Tensor]] = {
            f"{kind}.{layer}": [] for kind, layers in self._layers.items() for layer in layers
        }
        self.parents: list[list[int]] = []

    def open(self, opening: Opening) -> None:
        """Sees that the model will give what is to be kept.

        Raises:
            ArgumentError: It won't.
        """
        self._prefix = "decoder_" if opening.is_encoder_decoder else ""
        for kind, layers in self._layers.items():
            if layers and not getattr(opening.config, f"output_{kind}"):
                raise ArgumentError(f"ProbeSink is to keep {kind}, which the model must give: pass output_{kind}=True.")

    def take(self, event: Event) -> None:
        """Keeps its part of a step."""
        if not isinstance(event, Step):
            return
        for kind, layers in self._layers.items():
            given = event.outputs.get(self._prefix + kind) if layers else None
            for layer in layers:
                self._kept[f"{kind}.{layer}"].append(self._part(kind, layer, given))
        if event.beams is not None:
            self.parents.append(event.beams.parents.tolist())

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Does nothing: what was kept stays."""

    def steps(self) -> dict[str, list[torch.Tensor]]:
        """What was kept, by kind and layer: a tensor for each step, on the CPU."""
        return self._kept

    def numpy(self) -> dict[str, numpy.ndarray]:
        """The same as arrays, `(steps, rows, ...)`; numbers that NumPy lacks (bfloat16) as float32.

        Attentions, which reach over more keys with every step, are filled up with zeros.

        Raises:
            SinkError: The steps differ in shape, as they do without `reduce`; use `steps()`.
        """
        return {name: _known(tensor).numpy() for name, tensor in self._stacked().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was kept to a safetensors file, by the names of `numpy()`.

        Raises:
            SinkError: The steps differ in shape.
        """
        from safetensors.torch import save_file

        save_file(self._stacked(), path)

    def _part(self, kind: str, layer: int, given: Any) -> torch.Tensor:
        if given is None or not -len(given) <= layer < len(given):
            count = "none" if given is None else f"{len(given)}"
            raise ArgumentError(f"ProbeSink is to keep {kind} of layer {layer}, but the model gives {count}.")
        tensor: torch.Tensor = given[layer]
        along = 1 if kind == "hidden_states" else 2
        match self._reduce:
            case "last":
                tensor = tensor.select(along, -1)
            case "mean":
                tensor = tensor.mean(along)
            case function if callable(function):
                tensor = function(tensor)
        return tensor.detach().to("cpu", copy=True)

    def _stacked(self) -> dict[str, torch.Tensor]:
        made = {}
        for name, tensors in self._kept.items():
            if name.startswith("attentions"):
                tensors = _equally_long(tensors)
            if len({tensor.shape for tensor in tensors}) > 1:
                raise SinkError(f"{name} differs in shape from step to step, so it is no single array; see steps().")
            made[name] = torch.stack(tensors) if tensors else torch.empty(0)
        return made


def _equally_long(attentions: list[torch.Tensor]) -> list[torch.Tensor]:
    """Attentions over the same number of keys: none is paid to keys that were not there yet."""
    longest = max((tensor.shape[-1] for tensor in attentions if tensor.ndim), default=0)
    return [
        torch.nn.functional.pad(tensor, (0, longest - tensor.shape[-1])) if tensor.ndim else tensor
        for tensor in attentions
    ]


def _known(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor
