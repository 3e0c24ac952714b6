"""Records as JSON, with their tensors beside it. Nothing in it is code, and reading it runs none."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import transformers
from transformers import GenerationConfig
from transformers.utils import ModelOutput

from unspool.errors import ArgumentError
from unspool.events import Change, Draft, Frames, Phase, Retract, Segment
from unspool.records import Beams, Finish, FinishReason, Opening, PrefillProgress, Result, Step
from unspool.wire import plain

__all__ = ["packed", "unpacked"]

_RECORDS = (Beams, Change, Draft, Finish, Frames, Opening, Phase, PrefillProgress, Result, Retract, Segment, Step)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _RECORDS}
_NEVER = {"tokenizer", "encoder_outputs", "cache", "output"}
_OPTIONAL = ("logits", "outputs")


def packed(value: Any, tensors: dict[str, torch.Tensor], without: frozenset[str] = frozenset()) -> Any:
    """A value as JSON, its tensors put aside under a number.

    Args:
        value: A record, a tensor, a container of such, or plain data.
        tensors: Where tensors are put.
        without: Fields of steps that are left out.
    """
    match value:
        case torch.Tensor():
            name = str(len(tensors))
            tensors[name] = value.detach().to("cpu").contiguous().clone()
            return {"tensor": name}
        case FinishReason():
            return {"reason": value.value}
        case GenerationConfig():
            return {"config": plain(value.to_dict())}
        case ModelOutput():
            items = {name: packed(item, tensors) for name, item in value.items() if _can_be_kept(item)}
            return {"output": type(value).__name__, "items": items}
        case range():
            return {"range": [value.start, value.stop, value.step]}
        case dict():
            return {"dict": [[key, packed(item, tensors)] for key, item in value.items()]}
        case tuple() | list():
            return {"tuple": [packed(item, tensors) for item in value]}
        case _ if _kind(type(value).__name__) is type(value):
            names = [field.name for field in fields(value) if field.name not in _NEVER | without]
            made = {name: packed(getattr(value, name), tensors, without) for name in names}
            return {"record": type(value).__name__, "fields": made}
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _can_be_kept(item: Any) -> bool:
    if isinstance(item, (tuple, list)):
        return all(_can_be_kept(part) for part in item)
    return isinstance(item, (torch.Tensor, bool, int, float, str, type(None)))


def unpacked(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """What `packed` made JSON of.

    Raises:
        ArgumentError: It is something else.
    """
    if not isinstance(value, dict):
        return value
    match value:
        case {"tensor": name}:
            return tensors[name]
        case {"reason": reason}:
            return FinishReason(reason)
        case {"config": given}:
            return GenerationConfig.from_dict(given)
        case {"output": name, "items": items}:
            return _output_class(name)(**{key: unpacked(item, tensors) for key, item in items.items()})
        case {"range": bounds}:
            return range(*bounds)
        case {"dict": pairs}:
            return {key: unpacked(item, tensors) for key, item in pairs}
        case {"tuple": items}:
            return tuple(unpacked(item, tensors) for item in items)
        case {"record": name, "fields": given}:
            made = {key: unpacked(item, tensors) for key, item in given.items()}
            kind = _kind(name)
            if kind is None:
                raise ArgumentError(f"The recording holds a {name}, which isn't known here.")
            return kind(**dict.fromkeys(_lacking(kind, made)), **made)
    raise ArgumentError(f"The recording holds what no recording holds: {sorted(value)}.")


def _kind(name: str) -> type[Any] | None:
    """The record of that name; steps of particular kinds of models among them."""
    more, todo = dict(_KINDS), [Step]
    while todo:
        more |= {kind.__name__: kind for kind in todo}
        todo = [kind for each in todo for kind in each.__subclasses__()]
    return more.get(name)


def _lacking(kind: type[Any], made: dict[str, Any]) -> list[str]:
    """The fields of a step that were left out."""
    return [field for field in _OPTIONAL if issubclass(kind, Step) and field not in made]


def _output_class(name: str) -> type[ModelOutput]:
    """Transformers' class of that name, where it is one of the common ones; else one that takes any field."""
    found = getattr(transformers.modeling_outputs, name, None)
    return found if isinstance(found, type) and issubclass(found, ModelOutput) else _AnyOutput


@dataclass(init=False)
class _AnyOutput(ModelOutput):
    """The output of a class that isn't known here."""

    def __init__(self, **items: Any) -> None:
        super().__init__()
        for name, item in items.items():
            self[name] = item
