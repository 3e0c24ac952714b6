"""Layers of a cache that grow without copying, and that share a past.

transformers' dynamic cache concatenates keys and values at every step, so each step copies the whole past. Here the
full-attention layers of a cache that the run itself makes are replaced by layers that write into spare room, which
grows geometrically. All other layers, and caches that the caller made, stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

__all__ = ["BranchLayer", "BundledLayer", "GrowingLayer"]

_SPARE = 64  # positions; the least room that is added at once
_LONGEST = 64  # positions; the most that a branch keeps apart from the past that it shares

Pair = tuple[torch.Tensor, torch.Tensor]


class GrowingLayer(DynamicLayer):
    """A full-attention layer that writes new keys and values in place, into room kept for them.

    `keys` and `values` are views of the part in use: `(rows, heads, length, head_dim)`, as in `DynamicLayer`.
    Whoever assigns other tensors to them (a crop, a reorder) is followed: the room is made anew. What comes first is
    kept as it is, and room made with what comes second: often its rows are repeated in between.

    Args:
        limit: The most positions that the run can reach, where known; room is never made beyond it in vain.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self._rooms: list[torch.Tensor] = []
        self._own: torch.Tensor | None = None
        self._shared = 0  # leading positions that other layers look at: not to be written to

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values, each `(rows, heads, new, head_dim)`; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        new = key_states.shape[-2]
        if start == 0 and _is_all_of_its_storage(key_states) and _is_all_of_its_storage(value_states):
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        if not self.has_room(start + new) or start < self._shared:
            self._make_room(key_states, value_states, start, start + new)
            self._shared = 0
        keys, values = self._rooms
        keys.narrow(-2, start, new).copy_(key_states)
        values.narrow(-2, start, new).copy_(value_states)
        self._use(self._rooms, start + new)
        return self.keys, self.values

    def repeat(self, count: int) -> None:
        """Repeats each row `count` times, each beside its original, in new room."""
        stop = self.get_seq_length()
        rooms = []
        for view in (self.keys, self.values):
            rows, heads, _, size = view.shape
            room = view.new_empty((rows * count, heads, self._capacity(stop), size))
            room.view(rows, count, *room.shape[1:])[..., :stop, :] = view[:, None]
            rooms.append(room)
        self._use(rooms, stop)

    def reorder(self, index: torch.Tensor, shared: int) -> None:
        """Takes rows by their index, in place; the first `shared` positions are the same and stay where they are."""
        index = index.to(self.keys.device)
        if not self.has_room(0) or self._shared > shared:
            self.reorder_cache(index)
            return
        for view in (self.keys, self.values):
            part = view[..., shared:, :]
            part.copy_(part.index_select(0, index))

    def share(self) -> GrowingLayer:
        """One that looks at the same past, and keeps apart what comes after it."""
        if not self.is_initialized:
            return GrowingLayer(self.limit)
        self._shared = max(self._shared, self.get_seq_length())
        return BranchLayer(self.limit, (self.keys, self.values))

    def crop(self, tokens_to_remove: int) -> None:
        """Takes positions off the end; the room stays."""
        kept = self.has_room(0)
        super().crop(tokens_to_remove)
        if kept:
            self._use(self._rooms, self.keys.shape[-2])

    def has_room(self, stop: int) -> bool:
        """Whether `stop` positions fit, and the tensors in use are still the layer's own."""
        return self._own is not None and self.keys is self._own and stop <= self._rooms[0].shape[-2]

    def reset(self) -> None:
        """Forgets all positions."""
        self._rooms, self._own = [], None
        super().reset()

    def _use(self, rooms: list[torch.Tensor], stop: int) -> None:
        self._rooms = rooms
        self.keys, self.values = (room.narrow(-2, 0, stop) for room in rooms)
        self._own = self.keys

    def _capacity(self, stop: int) -> int:
        """How many positions to make room for, when `stop` are to fit."""
        capacity = stop + max(_SPARE, stop // 2)
        return capacity if self.limit is None else max(stop, min(capacity, self.limit))

    def _make_room(self, key_states: torch.Tensor, value_states: torch.Tensor, start: int, stop: int) -> None:
        rooms, capacity = [], self._capacity(stop)
        for old, new in ((self.keys, key_states), (self.values, value_states)):
            room = new.new_empty((*new.shape[:-2], capacity, new.shape[-1]))
            if start:
                room[..., :start, :] = old
            rooms.append(room)
        self._rooms = rooms


def _is_all_of_its_storage(tensor: torch.Tensor) -> bool:
    """Whether keeping the tensor keeps no other memory alive."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


class BranchLayer(GrowingLayer):
    """A layer of a fork: it looks at a past that others look at, too, and keeps only what came after it.

    Keys and values are put together when they are asked for. Once there is much of its own, or something else is done
    to it than adding or cutting off positions, it copies the past and is a layer like any other.

    Args:
        limit: As for `GrowingLayer`.
        past: The keys and values that are shared.
    """

    def __init__(self, limit: int | None, past: Pair) -> None:
        super().__init__(limit)
        self.past: Pair | None = past
        self._tails: list[torch.Tensor] = []
        self.count = 0
        self.dtype, self.device, self.is_initialized = past[0].dtype, past[0].device, True

    @property
    def keys(self) -> Any:
        """All keys: `(rows, heads, length, head_dim)`."""
        return self._whole(0) if self.past is not None else self._settled[0]

    @keys.setter
    def keys(self, keys: Any) -> None:
        self._settled = (keys, self._settled[1])

    @property
    def values(self) -> Any:
        """All values, in the same shape."""
        return self._whole(1) if self.past is not None else self._settled[1]

    @values.setter
    def values(self, values: Any) -> None:
        self._settled = (self._settled[0], values)

    _settled: tuple[Any, Any] = (None, None)
    past: Pair | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Adds keys and values; returns all of them."""
        if self.past is None or self.count + key_states.shape[-2] > _LONGEST:
            self.settle()
            return super().update(key_states, value_states, *args, **kwargs)
        self.add(key_states, value_states)
        return self._whole(0), self._whole(1)

    def add(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Adds keys and values of its own."""
        stop = self.count + keys.shape[-2]
        if not self._tails or stop > self._tails[0].shape[-2]:
            self._grow((keys, values), min(_LONGEST, max(16, 2 * stop)))
        for tail, new in zip(self._tails, (keys, values), strict=True):
            tail[..., self.count : stop, :] = new
        self.count = stop

    def has_room_apart(self) -> bool:
        """Whether one position more can be kept apart from the past."""
        return self.past is not None and self.count < _LONGEST

    def tail(self, which: int) -> torch.Tensor:
        """The keys (0) or values (1) of its own."""
        return self._tails[which][..., : self.count, :]

    def settle(self) -> None:
        """Copies the past, and shares nothing any more."""
        if self.past is not None:
            whole = self._whole(0), self._whole(1)
            self.past, self._tails, self.count = None, [], 0
            self.keys, self.values = whole

    def get_seq_length(self) -> int:
        """How many positions it holds."""
        return super().get_seq_length() if self.past is None else self.past[0].shape[-2] + self.count

    def share(self) -> GrowingLayer:
        """Another branch of the same past, with a copy of what came after it."""
        if self.past is None:
            return super().share()
        other = BranchLayer(self.limit, self.past)
        other._tails, other.count = [tail.clone() for tail in self._tails], self.count
        return other

    def crop(self, tokens_to_remove: int) -> None:
        """Takes positions off the end."""
        count = abs(tokens_to_remove)
        if self.past is None:
            super().crop(tokens_to_remove)
            return
        beyond = max(0, count - self.count)
        self.count = max(0, self.count - count)
        if beyond:
            length = self.past[0].shape[-2] - beyond
            self.past = (self.past[0][..., :length, :], self.past[1][..., :length, :])

    def repeat(self, count: int) -> None:
        """Repeats each row `count` times."""
        self.settle()
        super().repeat(count)

    def reorder(self, index: torch.Tensor, shared: int) -> None:
        """Takes rows by their index."""
        self.settle()
        super().reorder(index, shared)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Takes rows by their index."""
        self.settle()
        super().reorder_cache(beam_idx)

    def reset(self) -> None:
        """Forgets all positions."""
        self.settle()
        super().reset()

    def _whole(self, which: int) -> torch.Tensor:
        assert self.past is not None  # it isn't settled
        return self.past[which] if not self.count else torch.cat([self.past[which], self.tail(which)], dim=-2)

    def _grow(self, like: Pair, capacity: int) -> None:
        tails = [new.new_empty((*new.shape[:-2], capacity, new.shape[-1])) for new in like]
        for old, tail in zip(self._tails, tails, strict=False):
            tail[..., : self.count, :] = old[..., : self.count, :]
        self._tails = tails


class BundledLayer(DynamicLayer):
    """One layer of several branches, for a forward over all of them.

    Args:
        branches: Their layers; they share one past, and are equally long.
        bench: Where keys and values are put together. All layers of a forward use the same one, each after the other.
    """

    def __init__(self, branches: Sequence[BranchLayer], bench: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._branches, self._bench = branches, bench
        self.dtype, self.device, self.is_initialized = branches[0].dtype, branches[0].device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Pair:
        """Adds to each branch its rows; returns the keys and values of all, put together for this once."""
        count = len(self._branches)
        for branch, keys, values in zip(
            self._branches, key_states.chunk(count), value_states.chunk(count), strict=True
        ):
            branch.add(keys, values)
        return self._whole(0), self._whole(1)

    def get_seq_length(self) -> int:
        """How many positions each branch holds."""
        return self._branches[0].get_seq_length()

    def _whole(self, which: int) -> torch.Tensor:
        first = self._branches[0]
        assert first.past is not None  # nor of the others
        past = first.past[which]
        rows, heads, length, size = past.shape
        shape = (len(self._branches), rows, heads, length + _LONGEST, size)
        bench = self._bench.get(which)
        if bench is None or bench.shape != shape or bench.dtype != past.dtype or bench.device != past.device:
            bench = self._bench[which] = past.new_empty(shape)
        made = bench[..., : length + first.count, :]
        made[..., :length, :] = past
        for place, branch in zip(made, self._branches, strict=True):
            place[..., length:, :] = branch.tail(which)
        return made.flatten(0, 1)
