"""A run's state in a file: tensors in the safetensors format, everything else as JSON in its header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import DynamicCache, EncoderDecoderCache
from transformers.utils import ModelOutput

from unspool import bridge
from unspool import cache as caches
from unspool.cache_files import digest_of, fingerprint, kind_of, parts_of
from unspool.control.timeline import random_state
from unspool.errors import UnsupportedError
from unspool.layers import BranchLayer
from unspool.packing import packed
from unspool.records import Finish
from unspool.wire import plain

if TYPE_CHECKING:
    from transformers import Cache

    from unspool.state import DecodingState

__all__ = ["COUNTS", "FORMAT", "save", "seal"]

FORMAT = "unspool-stream-1"
COUNTS = ("steps", "forwards", "drafted", "accepted", "prompt_length", "rows_per_prompt", "running", "width")


def save(path: str | Path, state: DecodingState) -> None:
    """Writes a state.

    Raises:
        UnsupportedError: Something in it can't be written.
    """
    if any(isinstance(each, bridge.REMEMBERING) for each in state.built):
        raise UnsupportedError("A stream with guidance or a SynthID watermark can't be saved: its processor remembers.")
    tensors: dict[str, torch.Tensor] = {}
    told = packed(_plain(_fields(state)), tensors)
    cache = _packed_cache(state, tensors)
    header = {
        "format": FORMAT,
        "transformers": bridge.MAJOR_VERSION,
        "model": fingerprint(state.plan.model),
        "method": state.plan.method.name,
        "config": plain(state.config.to_dict()),
        "rows": None if state.row_configs is None else [plain(each.to_dict()) for each in state.row_configs],
        "users": [type(each).__name__ for each in (*state.plan.processors, *state.plan.criteria)],
        "fields": told,
        "cache": cache,
    }
    save_file(tensors, str(path), metadata={"unspool": json.dumps({**header, "digest": seal(header, tensors)})})


def seal(header: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> str:
    """What tells a file from one that was changed."""
    return hashlib.sha256((json.dumps(header, sort_keys=True) + digest_of(tensors)).encode()).hexdigest()


def _fields(state: DecodingState) -> dict[str, Any]:
    carry, inputs = state.carried, state.inputs
    found = carry.state()
    name = None if found is None else found[0]
    ready = state.ready()
    search = state.memory.get("search")
    return {
        "counts": {count: getattr(state, count) for count in COUNTS},
        "ids": state.ids,
        "live": state.live,
        "finishes": state.finishes,
        "stopped": {str(row): finish for row, finish in state.stopped.items()},
        "forced": {str(row): tokens for row, tokens in state.forced.waiting.items()},
        "offset": state.length - state.ids.shape[1],
        "tensor": None if inputs is None or inputs.tensor.is_floating_point() else inputs.tensor,
        "kwargs": {key: value for key, value in carry.kwargs.items() if key != name},
        "fixed": None if carry.fixed is None else {key: value for key, value in carry.fixed.items() if key != name},
        "position": carry.position,
        "direct": carry.direct,
        "kept": carry.kept.held(),
        "ready": None if ready is None else {k: v for k, v in ready.items() if k not in bridge.STATE_NAMES},
        "ready_kind": type(ready).__name__,
        "random": random_state(state) if state.config.do_sample else None,
        "history": state.history,
        "search": None if search is None else search.saved(),
    }


def _plain(value: Any, where: str = "") -> Any:
    """The same, if it is all of kinds that can be written.

    Raises:
        UnsupportedError: It isn't.
    """
    if isinstance(value, Finish):
        return Finish(value.reason, _plain_detail(value.detail))
    if isinstance(value, ModelOutput):
        return type(value)(**{key: _plain(item, key) for key, item in value.items()})
    if isinstance(value, Mapping):
        return {key: _plain(item, key) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item, where) for item in value)
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    raise UnsupportedError(f"A stream with {where}, a {type(value).__name__}, can't be saved.")


def _plain_detail(detail: Any) -> Any:
    return detail if isinstance(detail, (int, float, str, type(None))) else str(detail)


def _packed_cache(state: DecodingState, tensors: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    """A cache as JSON, its tensors put aside."""
    found = state.carried.state()
    if found is None:
        return None
    name, cache = found
    if not isinstance(cache, (DynamicCache, EncoderDecoderCache)):
        raise UnsupportedError(f"A stream with a {type(cache).__name__} can't be saved.")
    if isinstance(cache, EncoderDecoderCache):
        own = _packed_layers(cache.self_attention_cache, "cache.self", tensors)
        cross = _packed_layers(cache.cross_attention_cache, "cache.cross", tensors)
        return {"name": name, "self": own, "cross": cross, "updated": list(cache.is_updated.values())}
    read = caches.length(cache)
    return {"name": name, "self": _packed_layers(cache, "cache.self", tensors), "read": read}


def _packed_layers(cache: Cache, prefix: str, tensors: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    layers = []
    if any(isinstance(layer, BranchLayer) for layer in cache.layers):
        cache = caches.copied(cache, 0)
    for place, layer in enumerate(cache.layers):
        plain: dict[str, Any] = {}
        for name, value in parts_of(layer):
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{place}.{name}"] = value.detach().cpu().contiguous().clone()
            else:
                plain[name] = value
        layers.append({"kind": kind_of(layer), "plain": plain})
    return layers
