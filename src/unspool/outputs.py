"""What is done to a model's output object: cut to positions, repeated by rows, freed of its cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from unspool import bridge

__all__ = ["cut", "repeat", "strip", "width"]


def width(inputs: dict[str, Any], prefix: str) -> int:
    """How many positions a forward covers."""
    for name in (prefix + "input_ids", "inputs_embeds"):
        if inputs.get(name) is not None:
            return int(inputs[name].shape[1])
    return 1


def strip(outputs: Any) -> Any:
    """A model's output without its cache, and with the last position's logits only."""
    for name in bridge.STATE_NAMES:
        if name in outputs:
            OrderedDict.__delitem__(outputs, name)  # a ModelOutput refuses to lose fields by itself
            object.__setattr__(outputs, name, None)
    if outputs.logits.shape[1] > 1:
        outputs.logits = outputs.logits[:, -1:].clone()
    return outputs


def repeat(value: Any, count: int, rows: int, width: int) -> Any:
    """A model's output with each row repeated, field by field; what has no rows is left alone."""
    if isinstance(value, torch.Tensor):
        if value.ndim and value.shape[0] == rows:
            return value.repeat_interleave(count, dim=0)
        if value.ndim and value.shape[0] == rows * width:  # rows and positions in one dimension, as routers give
            apart = value.reshape(rows, width, *value.shape[1:])
            return apart.repeat_interleave(count, dim=0).flatten(0, 1)
        return value
    if hasattr(value, "keys"):
        held = {k: v if k in bridge.STATE_NAMES else repeat(v, count, rows, width) for k, v in value.items()}
        return type(value)(**held)
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(repeat(item, count, rows, width) for item in value)
    return value


def cut(outputs: Any, start: int, stop: int, width: int) -> Any:
    """A model's output for some of the `width` positions of its forward, in tensors of their own."""
    made = {}
    for name, value in outputs.items():
        if name in bridge.STATE_NAMES:
            continue
        made[name] = _cut_field(name, value, start, stop, width)
    made["logits"] = made["logits"][:, -1:] if made.get("logits") is not None else None
    return type(outputs)(**made)


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
