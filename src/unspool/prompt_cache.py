"""Prompts that a model has read, kept for all streams that begin as they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import Cache, EncoderDecoderCache

from unspool import cache as caches
from unspool import cache_files
from unspool.api import generate_stream, prefill
from unspool.errors import ArgumentError, CacheError, UnsupportedError
from unspool.records import Event, Opening, Result
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PromptCache", "PromptCacheStats"]


@dataclass(frozen=True, slots=True)
class PromptCacheStats:
    """What a prompt cache has done.

    Attributes:
        hits: Prompts of which some was held.
        misses: Prompts of which nothing was.
        reused: Prompt tokens that were not read again.
        read: Prompt tokens that were read.
        evicted: Entries that had to make room.
        entries: Entries held.
        tokens: Tokens held.
        bytes: Bytes of keys, values and states held.
    """

    hits: int = 0
    misses: int = 0
    reused: int = 0
    read: int = 0
    evicted: int = 0
    entries: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Entry:
    """Ids, and the cache that holds their positions. It is never written to."""

    ids: list[int]
    cache: Cache
    bytes: int


class PromptCache:
    """What a model has read, for streams that begin with the same tokens.

    Each stream gets a copy of the longest beginning that is held, found id by id, and reads only the rest; what it has
    come to is held afterwards. Where a cache can't be cut back to what two prompts share (a sliding window that is
    full, a recurrent state), it serves prompts that begin with all of it, and the prompt is held apart from the answer.

    Args:
        model: A decoder-only model.
        max_tokens: How many tokens may be held; the entry that was used least recently goes first. None for any number.
        max_bytes: How many bytes may be held.

    Raises:
        ArgumentError: A limit is not a positive number.
        UnsupportedError: The model has an encoder.

    Example:
        >>> model, prompt = tiny_model(), torch.tensor([[5, 6, 7, 8, 9, 10]])
        >>> cache = PromptCache(model)
        >>> cache.read(prompt)
        5
        >>> stream = cache.stream(prompt, max_new_tokens=3)
        >>> [len(step.positions) for step in stream]
        [1, 1, 1]
        >>> cache.stats.reused
        5
    """

    def __init__(
        self, model: PreTrainedModel, *, max_tokens: int | None = 65_536, max_bytes: int | None = None
    ) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedError("A prompt cache is for decoder-only models; of an encoder, keep `encoder_outputs`.")
        for name, limit in (("max_tokens", max_tokens), ("max_bytes", max_bytes)):
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise ArgumentError(f"{name}={limit!r} is no limit; a number from 1 on would do, or None.")
        self.model = model
        self._max_tokens, self._max_bytes = max_tokens, max_bytes
        self._entries: list[_Entry] = []  # the one used last comes last
        self._stats = PromptCacheStats()

    @property
    def stats(self) -> PromptCacheStats:
        """What it has done so far."""
        entries = self._entries
        return replace(
            self._stats,
            entries=len(entries),
            tokens=sum(len(entry.ids) for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
        )

    def read(self, inputs: torch.Tensor, **kwargs: Any) -> int:
        """Reads a prompt, all but its last token, without generating anything, and holds it.

        Args:
            inputs: int64 `(1, length)`.
            **kwargs: As for `prefill`.

        Returns:
            How many of its tokens are held now.
        """
        ids = _one_row(inputs)
        if len(ids) < 2:
            return 0
        past, held = self._take(ids)
        if held < len(ids) - 1:
            ready = prefill(self.model, inputs, cache=past, **kwargs)
            self._hold(ids[:-1], ready.cache)
        self._count(len(ids) - 1, held)
        return len(ids) - 1

    def stream(self, inputs: torch.Tensor | None = None, **kwargs: Any) -> Stream:
        """A stream as from `generate_stream`, which reads only what is not held of the prompt.

        Prompts that can't be compared by their ids (several at once, images, embeddings) and streams with a cache of
        their own are read as usual.

        Args:
            inputs: The prompt: int64 `(1, length)`. May be given as `input_ids=`.
            **kwargs: As for `generate_stream`.

        Returns:
            The stream. When it ends, what it has come to is held.
        """
        given = kwargs.get("input_ids") if inputs is None else inputs
        if given is None or not _comparable(given, kwargs):
            return generate_stream(self.model, inputs, **kwargs)
        ids = _one_row(given)
        past, held = self._take(ids)
        if not self._can_cut(past) and held < len(ids) - 1 and len(ids) > 1:
            past = self._read_apart(given, ids, past)
        sinks = [*kwargs.pop("sinks", ()), _Holder(self)]
        kwargs["return_dict_in_generate"] = True  # so that the stream's cache outlives it
        stream = generate_stream(self.model, inputs, cache=past, sinks=sinks, **kwargs)
        self._count(len(ids), held)
        return stream

    def clear(self) -> None:
        """Lets go of everything that is held."""
        self._entries.clear()

    def save(self, path: str | Path) -> None:
        """Writes what is held to a file: tensors as safetensors, the rest as JSON in its header."""
        cache_files.save(path, self.model, [(entry.ids, entry.cache) for entry in self._entries])

    def load(self, path: str | Path) -> None:
        """Holds what a file has, too.

        Raises:
            CacheError: The file is damaged, or of another model.
        """
        for ids, cache in cache_files.load(path, self.model):
            self._hold(ids, cache)

    def _take(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """A copy of what is held of a prompt, all but its last token at most, and how many positions that is."""
        by_length = sorted(self._entries, key=lambda entry: _common(entry.ids, ids), reverse=True)
        for entry in by_length:
            common = min(_common(entry.ids, ids), len(ids) - 1)
            if not common:
                break
            try:
                taken = caches.copied(entry.cache, len(entry.ids) - common)
            except CacheError:
                continue
            self._entries.remove(entry)
            self._entries.append(entry)
            caches.note_read(taken, common)
            return taken, common
        return None, 0

    def _hold(self, ids: Sequence[int], cache: Cache) -> None:
        """Holds a cache that nobody else writes to, in place of those that it makes needless."""
        cuttable = self._can_cut(cache)
        self._entries = [
            entry
            for entry in self._entries
            if entry.ids != ids and not (cuttable and entry.ids == list(ids[: len(entry.ids)]))
        ]
        caches.free_growth(cache)
        self._entries.append(_Entry(list(ids), cache, caches.size(cache)))
        while len(self._entries) > 1 and self._too_large():
            self._entries.pop(0)
            self._stats = replace(self._stats, evicted=self._stats.evicted + 1)
        if self._too_large():
            self._entries.clear()

    def _too_large(self) -> bool:
        now = self.stats
        over_tokens = self._max_tokens is not None and now.tokens > self._max_tokens
        return over_tokens or (self._max_bytes is not None and now.bytes > self._max_bytes)

    def _count(self, tokens: int, held: int) -> None:
        now = self._stats
        hit = held > 0
        self._stats = replace(
            now,
            hits=now.hits + hit,
            misses=now.misses + (not hit),
            reused=now.reused + held,
            read=now.read + tokens - held,
        )

    def _can_cut(self, cache: Cache | None) -> bool:
        """Whether a cache of this model can be cut anywhere; known of one that isn't filled yet, too."""
        return not caches.keeps_little(cache if cache is not None else caches.empty(self.model))

    def _read_apart(self, given: torch.Tensor, ids: list[int], past: Cache | None) -> Cache | None:
        """Reads a prompt, all but its last token, holds that, and returns what a stream goes on from."""
        try:
            ready = prefill(self.model, given, cache=past)
        except UnsupportedError:  # a state in another form, which each run makes anew
            return past
        self._hold(ids[:-1], caches.copied(ready.cache, 0))
        caches.note_read(ready.cache, len(ids) - 1)
        return cast("Cache", ready.cache)

    def keep(self, result: Result) -> None:
        """Holds what a run has come to, if it left one row of a cache that is whole."""
        cache = result.cache
        if not isinstance(cache, Cache) or isinstance(cache, EncoderDecoderCache) or caches.rows(cache) != 1:
            return
        ids: list[int] = result.sequences[0].tolist()
        length = len(ids) - 1 if caches.is_recurrent(cache) else caches.length(cache)
        if not length or not caches.is_whole(cache):
            return
        try:  # drafts may have been read that were not taken any more
            held = caches.copied(cache, max(0, length - len(ids)))
        except CacheError:
            return
        self._hold(ids[:length], held)


class _Holder:
    """Hands what a stream has come to back to the prompt cache."""

    def __init__(self, home: PromptCache) -> None:
        self._home = home

    def open(self, opening: Opening) -> None:
        """Nothing."""

    def take(self, event: Event) -> None:
        """Nothing."""

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Holds the result's cache."""
        if result is not None:
            self._home.keep(result)


def _one_row(ids: torch.Tensor) -> list[int]:
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise ArgumentError(f"The prompt has shape {tuple(ids.shape)}; one row of ids, (1, length), would do.")
    row: list[int] = ids[0].tolist()
    return row


def _comparable(ids: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether a prompt is told by its ids alone, and the stream may have a cache of ours."""
    mask = kwargs.get("attention_mask")
    known = {"input_ids", "attention_mask"}
    others = (value for name, value in kwargs.items() if name not in known)
    plain = not any(isinstance(value, torch.Tensor) for value in others)
    free = all(
        kwargs.get(name) is None for name in ("cache", "past_key_values", "cache_params", "cache_implementation")
    )
    rows = ids.ndim == 2 and ids.shape[0] == 1 and not ids.is_floating_point()
    return rows and plain and free and kwargs.get("use_cache") is not False and (mask is None or bool(mask.all()))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginnings."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
