"""Caches on disk: tensors in the safetensors format, everything else as JSON in its header. Nothing is executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from unspool.errors import CacheError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["digest_of", "fill", "fingerprint", "kind_of", "load", "parts_of", "save"]

_FORMAT = "unspool-caches-1"
_PASSING = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}


def fingerprint(model: PreTrainedModel) -> str:
    """What tells a model from others: a digest of its class, config, dtype and of some of its weights."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _PASSING}
    digest = hashlib.sha256(json.dumps([type(model).__name__, config, str(model.dtype)], default=str).encode())
    for name, weight in (*list(model.named_parameters())[:2], *list(model.named_parameters())[-2:]):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def save(path: str | Path, model: PreTrainedModel, held: Sequence[tuple[Sequence[int], Cache]]) -> None:
    """Writes caches of a model, each with the ids that it holds.

    Raises:
        CacheError: A cache isn't a plain one.
    """
    tensors: dict[str, torch.Tensor] = {}
    entries = []
    for number, (ids, cache) in enumerate(held):
        if isinstance(cache, EncoderDecoderCache):
            raise CacheError("The cache of an encoder-decoder model can't be saved: it belongs to its encoder's input.")
        layers = []
        for place, layer in enumerate(cache.layers):
            plain: dict[str, Any] = {}
            for name, value in parts_of(layer):
                if isinstance(value, torch.Tensor):
                    tensors[f"{number}.{place}.{name}"] = value.detach().cpu().contiguous()
                else:
                    plain[name] = value
            layers.append({"kind": kind_of(layer), "plain": plain})
        entries.append({"ids": list(ids), "layers": layers})
    header = {"format": _FORMAT, "model": fingerprint(model), "entries": entries, "digest": digest_of(tensors)}
    save_file(tensors, str(path), metadata={"unspool": json.dumps(header)})


def load(path: str | Path, model: PreTrainedModel) -> list[tuple[list[int], Cache]]:
    """Reads what `save` wrote.

    Raises:
        CacheError: The file is none of these, or damaged, or of another model.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get("unspool", "null"))
            if not isinstance(header, dict) or header.get("format") != _FORMAT:
                raise CacheError(f"{path} holds no caches that unspool wrote.")
            if header.get("model") != fingerprint(model):
                raise CacheError(f"{path} holds caches of another model than this {type(model).__name__}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CacheError(f"{path} is damaged, or no file of caches: {error}") from error
    if header.get("digest") != digest_of(tensors):
        raise CacheError(f"{path} is damaged: its tensors aren't those that were written.")
    try:
        return [_entry(model, number, entry, tensors) for number, entry in enumerate(header["entries"])]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CacheError(f"{path} is damaged: {error!r}") from error


def _entry(
    model: PreTrainedModel, number: int, entry: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[list[int], Cache]:
    cache = DynamicCache(config=model.config)
    for place, told in enumerate(entry["layers"]):
        if place == len(cache.layers):
            cache.layers.append(DynamicLayer())
        layer = cache.layers[place]
        if told["kind"] != kind_of(layer):
            raise ValueError(f"layer {place} is a {told['kind']}, where the model has a {kind_of(layer)}")
        mine = {
            name.split(".", 2)[2]: tensor.to(model.device)
            for name, tensor in tensors.items()
            if name.startswith(f"{number}.{place}.")
        }
        fill(layer, {**told["plain"], **mine})
    return [int(token) for token in entry["ids"]], cache


def parts_of(layer: Any) -> Iterator[tuple[str, Any]]:
    """All that a layer holds, by name: tensors, numbers and flags, those in its dicts as `name/key`."""
    for name, value in vars(layer).items():
        if name.startswith("_") or name in ("dtype", "device", "limit"):
            continue
        for key, item in value.items() if isinstance(value, dict) else ((None, value),):
            if isinstance(item, (torch.Tensor, bool, int, float)):
                yield (name if key is None else f"{name}/{key}"), item


def fill(layer: Any, parts: dict[str, Any]) -> None:
    """Puts into a layer what another held.

    Raises:
        ValueError: It has no such part.
    """
    known = vars(layer)
    for name, value in parts.items():
        outer, _, key = name.partition("/")
        if outer.startswith("_") or outer not in known:
            raise ValueError(f"a layer has no {outer!r}")
        if key:
            known[outer][int(key)] = value
        else:
            setattr(layer, outer, value)
        if isinstance(value, torch.Tensor) and hasattr(layer, "dtype") | isinstance(layer, DynamicLayer):
            layer.dtype, layer.device = value.dtype, value.device


def kind_of(layer: Any) -> str:
    """The name of a layer's class in transformers."""
    return next(kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("transformers."))


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """What tells some tensors from others."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes() if tensors[name].ndim else b"")
    return digest.hexdigest()
