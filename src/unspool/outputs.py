"""What is done to a model's output object: cut to positions, its rows repeated or picked, freed of its cache."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from unspool import bridge

__all__ = ["cut", "drop", "interleave", "pick", "repeat", "strip", "width", "with_state"]


def width(inputs: dict[str, Any], prefix: str) -> int:
    """How many positions a forward covers."""
    for name in (prefix + "input_ids", "inputs_embeds"):
        if inputs.get(name) is not None:
            return int(inputs[name].shape[1])
    return 1


def strip(outputs: Any, unasked: Iterable[str] = ()) -> Any:
    """A model's output without its cache and some other fields, and with the last position's logits only."""
    drop(outputs, (*bridge.STATE_NAMES, *unasked))
    if outputs.logits.shape[1] > 1:
        outputs.logits = outputs.logits[:, -1:].clone()
    return outputs


def drop(outputs: Any, names: Iterable[str]) -> None:
    """Takes fields off a model's output."""
    for name in names:
        if name in outputs:
            OrderedDict.__delitem__(outputs, name)  # a ModelOutput refuses to lose fields by itself
            object.__setattr__(outputs, name, None)


def with_state(outputs: Any, kwargs: Mapping[str, Any]) -> Any:
    """The same output with another run's cache in it: that of its keywords, or a copy if it isn't among them yet."""
    if outputs is None:
        return None
    changed = {name: value for name, value in outputs.items() if name not in bridge.STATE_NAMES}
    for name in (name for name in outputs if name in bridge.STATE_NAMES):
        changed[name] = kwargs[name] if kwargs.get(name) is not None else copy.deepcopy(outputs[name])
    return _like(outputs, changed)


def repeat(outputs: Any, count: int, rows: int, width: int) -> Any:
    """A model's output with each row repeated, field by field; what has no rows is left alone."""

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim and tensor.shape[0] == rows:
            return tensor.repeat_interleave(count, dim=0)
        if tensor.ndim and tensor.shape[0] == rows * width:  # rows and positions in one dimension, as routers give
            apart = tensor.reshape(rows, width, *tensor.shape[1:])
            return apart.repeat_interleave(count, dim=0).flatten(0, 1)
        return tensor

    return _changed(outputs, repeated)


def pick(outputs: Any, index: torch.Tensor, rows: int) -> Any:
    """Some of the `rows` rows of a model's output, by their index; what has no rows is left alone."""

    def picked(tensor: torch.Tensor) -> torch.Tensor:
        has_rows = tensor.ndim and tensor.shape[0] == rows
        return tensor.index_select(0, index.to(tensor.device)) if has_rows else tensor

    return _changed(outputs, picked)


def interleave(outputs: Sequence[Any]) -> Any:
    """Several outputs of the same rows as one: the first row of each, then the second of each, and so on."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(outputs), dim=1).flatten(0, 1)
    if hasattr(first, "keys"):
        return _like(first, {name: interleave([output[name] for output in outputs]) for name in first})
    if isinstance(first, (tuple, list)):
        return type(first)(interleave(items) for items in zip(*outputs, strict=True))
    return first


def _like(outputs: Any, named: dict[str, Any]) -> Any:
    """An output of the same kind with other values, those among them that its class doesn't name."""
    fields = getattr(type(outputs), "__dataclass_fields__", named)
    made = type(outputs)(**{name: value for name, value in named.items() if name in fields})
    for name in (name for name in named if name not in fields):
        made[name] = named[name]
    return made


def _changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A model's output with its tensors changed, field by field; the cache stays as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if hasattr(value, "keys"):
        changed = {k: v if k in bridge.STATE_NAMES else _changed(v, change) for k, v in value.items()}
        return _like(value, changed)
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_changed(item, change) for item in value)
    return value


def cut(outputs: Any, start: int, stop: int, width: int) -> Any:
    """A model's output for some of the `width` positions of its forward, in tensors of their own."""
    made = {}
    for name, value in outputs.items():
        if name in bridge.STATE_NAMES:
            continue
        made[name] = _cut_field(name, value, start, stop, width)
    made["logits"] = made["logits"][:, -1:] if made.get("logits") is not None else None
    return _like(outputs, made)


def _cut_field(name: str, value: Any, start: int, stop: int, width: int) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_cut_field(name, item, start, stop, width) for item in value)
    if not isinstance(value, torch.Tensor) or name.startswith("encoder"):
        return value
    if name == "logits":  # of the last positions only
        at = value.shape[1] - (width - stop) - 1
        return value[:, at : at + 1].clone()
    if "attentions" in name and value.ndim == 4:
        keys = value.shape[-1] if name.startswith("cross") else value.shape[-1] - (width - stop)
        return value[..., start:stop, :keys].clone()
    if value.ndim > 1 and value.shape[1] == width:
        return value[:, start:stop].clone()
    if value.ndim and value.shape[0] == width:
        return value[start:stop].clone()
    return value
