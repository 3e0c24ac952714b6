"""What a run does to caches of any kind."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer, StaticLayer

from unspool.errors import CacheError
from unspool.layers import BranchLayer, GrowingLayer

__all__ = [
    "GrowingLayer",
    "can_expand",
    "copied",
    "crop",
    "empty",
    "expand",
    "free_growth",
    "grow_in_place",
    "is_recurrent",
    "is_whole",
    "keeps_little",
    "length",
    "let_grow",
    "note_read",
    "reorder",
    "rows",
    "shared",
    "size",
    "take",
    "why_uncuttable",
]

_read: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many positions caches have read that keep no count themselves, as far as somebody has noted it."""


def grow_in_place(cache: Any, limit: int | None) -> None:
    """Lets the plain full-attention layers of a cache grow without concatenation."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if not isinstance(cache, Cache) or getattr(cache, "offloading", False):
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = functools.partial(GrowingLayer, limit)
    cache.layers = [
        GrowingLayer(limit) if type(layer) is DynamicLayer and not layer.is_initialized else layer
        for layer in cache.layers
    ]


def free_growth(cache: Any) -> None:
    """Lifts the limit on how far a cache's layers may grow, for one that outlives the run that made it."""
    for part in _parts(cache):
        for layer in part.layers:
            if isinstance(layer, GrowingLayer):
                layer.limit = None


def let_grow(cache: Any, limit: int | None) -> None:
    """Has a cache make room for more positions than was foreseen.

    Raises:
        CacheError: Its room is fixed.
    """
    for layer in [layer for part in _parts(cache) for layer in part.layers] if isinstance(cache, Cache) else []:
        if isinstance(layer, StaticLayer) and (limit or 0) > layer.max_cache_len:
            raise CacheError(f"The cache has room for {layer.max_cache_len} positions; {limit} would be needed.")
        if isinstance(layer, GrowingLayer):
            layer.limit = limit


def length(cache: Any) -> int:
    """How many positions a cache holds; 0 for one that keeps no count (None, or recurrent state only) unless noted."""
    if not isinstance(cache, Cache) or is_recurrent(cache):
        return _read.get(cache, 0) if isinstance(cache, Cache) else 0
    return int(cache.get_seq_length())


def _is_own_static(layer: Any) -> bool:
    return isinstance(layer, StaticLayer) and not type(layer).__module__.endswith("cache_utils")


def rows(cache: Any) -> int:
    """How many rows a cache holds; 0 while it is empty, and for a state in another form."""
    if isinstance(cache, EncoderDecoderCache):
        return rows(cache.self_attention_cache)
    for layer in getattr(cache, "layers", []) if isinstance(cache, Cache) else []:
        for tensor in _tensors(layer):
            if tensor.numel():
                return int(tensor.shape[0])
    return 0


def is_recurrent(cache: Any) -> bool:
    """Whether all layers of a cache hold recurrent state only, so that none knows its length."""
    from transformers.cache_utils import CacheLayerMixin

    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    layers = getattr(cache, "layers", [])
    return bool(layers) and not any(isinstance(layer, CacheLayerMixin) for layer in layers)


def can_expand(cache: Any) -> bool:
    """Whether the rows of a cache can be repeated once it is filled.

    Quantised and offloaded layers, and static ones of a model's own, keep rows where no common method reaches them.
    """
    if isinstance(cache, EncoderDecoderCache):
        return can_expand(cache.self_attention_cache) and can_expand(cache.cross_attention_cache)
    if not isinstance(cache, Cache) or getattr(cache, "offloading", False):
        return False
    return not any("Quantized" in type(layer).__name__ or _is_own_static(layer) for layer in cache.layers)


def expand(cache: Cache, count: int, rows: int) -> None:
    """Repeats each of the `rows` rows of a filled cache `count` times, in place, each beside its original."""
    index = torch.arange(rows).repeat_interleave(count)
    for part in _parts(cache):
        for layer in part.layers:
            if isinstance(layer, GrowingLayer) and layer.is_initialized:
                layer.repeat(count)
            else:
                layer.reorder_cache(index)
            if hasattr(layer, "batch_size"):
                layer.batch_size = rows * count
        if isinstance(part, StaticCache):
            _mark_static(part)


def reorder(cache: Cache, index: torch.Tensor, shared: int, *, encoder_too: bool) -> None:
    """Takes rows of a cache by their index, in place.

    What the rows that change places share stays where it is: the first `shared` positions where a layer can leave them,
    and the second part of an `EncoderDecoderCache`, unless `encoder_too` says that a decoder writes to it as well.
    """
    for layer in [layer for part in _parts(cache)[: 2 if encoder_too else 1] for layer in part.layers]:
        if isinstance(layer, GrowingLayer) and layer.is_initialized:
            layer.reorder(index, shared)
        else:
            layer.reorder_cache(index)


def take(cache: Cache, index: torch.Tensor) -> None:
    """Keeps some rows of a cache only, by their index, in place."""
    for layer in [layer for part in _parts(cache) for layer in part.layers]:
        layer.reorder_cache(index)


def crop(cache: Cache, count: int) -> None:
    """Takes the last `count` positions off a cache, in place.

    Raises:
        CacheError: A layer keeps too little of the past to go back.
    """
    for layer in _parts(cache)[0].layers:
        window = getattr(layer, "sliding_window", None)
        if hasattr(layer, "conv_states"):
            raise CacheError(
                f"A cache with a {type(layer).__name__} can't be cut: its state holds no single positions."
            )
        if window is not None and layer.get_seq_length() >= window:
            raise CacheError(f"A cache whose sliding window of {window} positions is full can't be cut.")
    cache.crop(-count)


def note_read(cache: Cache, count: int) -> None:
    """Notes how many positions a cache has read, for one that keeps no count itself."""
    if is_recurrent(cache):
        _read[cache] = count


def empty(model: Any) -> Cache:
    """A cache of the kind that a model fills."""
    return DynamicCache(config=model.config)


def keeps_little(cache: Cache) -> bool:
    """Whether a layer keeps less than the whole past, or is about to, so that cutting the cache may fail."""
    return any(
        hasattr(layer, "conv_states") or getattr(layer, "sliding_window", None) is not None
        for part in _parts(cache)
        for layer in part.layers
    )


def is_whole(cache: Cache) -> bool:
    """Whether every layer holds as much: an interrupt may come in the middle of a forward."""
    if is_recurrent(cache):
        return True
    counts = (layer.get_seq_length() for layer in cache.layers if callable(getattr(layer, "get_seq_length", None)))
    return all(int(count) in (0, length(cache)) for count in counts)


def size(cache: Cache) -> int:
    """The bytes of all tensors of a cache."""
    layers = (layer for part in _parts(cache) for layer in part.layers)
    return sum(tensor.nbytes for layer in layers for tensor in _tensors(layer))


def why_uncuttable(cache: Any) -> str | None:
    """Why positions can't be taken off a cache; None if they can."""
    if not isinstance(cache, Cache):
        return "the model keeps its state in a form of its own"
    if is_recurrent(cache):
        return "a recurrent state holds no single positions"
    for layer in _parts(cache)[0].layers:
        if hasattr(layer, "conv_states"):
            return "a recurrent state holds no single positions"
        window = getattr(layer, "sliding_window", None)
        if window is not None and layer.get_seq_length() >= window:
            return f"a sliding window of {window} positions is full"
        if "Quantized" in type(layer).__name__ or _is_own_static(layer):
            return f"a {type(layer).__name__} gives no position back"
    return None


def copied(cache: Any, cut: int) -> Any:
    """A copy of a cache without its last `cut` positions. What an encoder gave is the same in both.

    Raises:
        CacheError: A layer keeps too little of the past to go back.
    """
    if isinstance(cache, DynamicCache) and all(
        type(layer) in (DynamicLayer, GrowingLayer, BranchLayer) for layer in cache.layers
    ):
        other = copy.copy(cache)
        other.layers = [_copied_layer(layer, cut) for layer in cache.layers]
        return other
    if isinstance(cache, EncoderDecoderCache):
        pair = copy.copy(cache)
        pair.self_attention_cache = copied(cache.self_attention_cache, cut)
        pair.cross_attention_cache = copy.copy(cache.cross_attention_cache)
        pair.cross_attention_cache.layers = [copy.copy(layer) for layer in cache.cross_attention_cache.layers]
        pair.is_updated = dict(cache.is_updated)
        return pair
    other = copy.deepcopy(cache)
    if cut:
        crop(other, cut)
    return other


def shared(cache: Any) -> Any:
    """A copy of a cache that shares the past with it, where the layers can; else a copy."""
    if isinstance(cache, EncoderDecoderCache):
        pair = copied(cache, 0)
        pair.self_attention_cache = shared(cache.self_attention_cache)
        return pair
    if isinstance(cache, DynamicCache) and all(isinstance(layer, GrowingLayer) for layer in cache.layers):
        other = copy.copy(cache)
        other.layers = [layer.share() for layer in cache.layers]
        return other
    return copied(cache, 0)


def _copied_layer(layer: Any, cut: int) -> GrowingLayer:
    other = GrowingLayer()
    if layer.is_initialized:
        stop = layer.get_seq_length() - cut
        keys, values = layer.keys, layer.values
        other.lazy_initialization(keys, values)
        other.keys, other.values = (part[..., :stop, :].clone() for part in (keys, values))
    return other


def _parts(cache: Cache) -> list[Cache]:
    return (
        [cache.self_attention_cache, cache.cross_attention_cache] if isinstance(cache, EncoderDecoderCache) else [cache]
    )


def _tensors(layer: Any) -> Iterator[torch.Tensor]:
    """What a layer holds: keys and values, or states of other kinds, one or several of each; rows come first."""
    for held in vars(layer).values():
        for tensor in held.values() if isinstance(held, dict) else (held,):
            if isinstance(tensor, torch.Tensor) and tensor.ndim > 1:
                yield tensor


def _mark_static(cache: StaticCache) -> None:
    """Tells torch.compile that the buffers, which a reorder has made anew, will stay where they are."""
    from torch._dynamo import mark_static_address

    for layer in cache.layers:
        for name in ("keys", "values"):
            buffer = getattr(layer, name, None)
            if isinstance(buffer, torch.Tensor):
                mark_static_address(buffer)
