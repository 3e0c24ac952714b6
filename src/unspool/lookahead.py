"""Forwards over several candidates for the next token of each row, of which one is kept."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

from unspool import bridge
from unspool import cache as caches
from unspool import outputs as outputs_of
from unspool.errors import CacheError

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["LookAhead", "OneByOne"]


class LookAhead:
    """All candidates of a row in one forward, beside each other in a cache that holds the row once for each.

    The rows of the cache are repeated once. After each forward, only the position that it added is overwritten,
    by that of the candidate kept; what came before is the same for all and stays where it is.

    Args:
        state: The state, before its first forward.
        count: Candidates for each row.
    """

    def __init__(self, state: DecodingState, count: int) -> None:
        self.state, self.count = state, count
        self.carry = state.carried
        self._open()

    def _open(self) -> None:
        state = self.state
        if not state.plan.family.can_expand_later(state.plan.model, self.carry, state.ids.shape[0]):
            raise CacheError("Candidates need a cache whose rows can be repeated; leave out cache and use_cache.")
        state.widen(self.count)

    def forward(self, tokens: torch.Tensor) -> Any:
        """The model's output for each row continued by each of its candidates.

        Args:
            tokens: int64 `(rows, count)`.

        Returns:
            The output, with `rows * count` rows.
        """
        ids = self.state.ids.repeat_interleave(self.count, dim=0)
        outputs = self._run(torch.cat([ids, tokens.reshape(-1, 1)], dim=-1))
        self._absorb(outputs)
        return outputs

    def keep(self, choice: torch.Tensor, outputs: Any) -> Any:
        """Continues each row by one of its candidates, and forgets the others.

        Args:
            choice: int64 `(rows,)`: the number of the candidate.
            outputs: What `forward` returned.

        Returns:
            The output of the candidates kept, with `rows` rows.
        """
        kept = self._rows() + choice
        plan, length = self.state.plan, self.state.length
        plan.family.reorder(plan.model, self.carry, kept.repeat_interleave(self.count), length)
        return outputs_of.pick(outputs, kept, choice.shape[0] * self.count)

    def close(self) -> None:
        """Leaves a cache that the caller gets as other methods leave it: one row each, without the last token."""
        cache = self.carry.cache
        if not self.state.plan.returns_cache or not isinstance(cache, Cache) or not caches.rows(cache):
            return
        self._fold(cache)
        with contextlib.suppress(CacheError):  # a full window can't go back, and need not
            caches.crop(cache, caches.length(cache) - self.state.length + 1)

    def _fold(self, cache: Cache) -> None:
        rows = self._rows()
        caches.take(cache, rows)
        self.carry.kept.reorder(rows, rows.shape[0] * self.count)
        self.carry.kept.leave_with(cache)

    def _rows(self) -> torch.Tensor:
        """The first of the cache's rows for each row."""
        ids = self.state.ids
        return torch.arange(ids.shape[0], device=ids.device) * self.count

    def _run(self, ids: torch.Tensor) -> Any:
        plan = self.state.plan
        return self.state.run(plan.family.step_inputs(plan.model, self.carry, ids), decoding=True)

    def _absorb(self, outputs: Any) -> None:
        plan = self.state.plan
        plan.family.absorb(plan.model, self.carry, outputs)


class OneByOne(LookAhead):
    """The candidates of a row one after the other, in a cache that holds the row once: slower, in less memory.

    Each candidate is taken back off the cache, and the one that is kept is read once more.
    """

    def _open(self) -> None:
        if not bridge.can_crop(self.carry.cache):
            raise CacheError("low_memory=True needs a cache that can be cut; leave it out for this model.")

    def forward(self, tokens: torch.Tensor) -> Any:
        """The model's output for each row continued by each of its candidates."""
        self._tokens, outputs = tokens, []
        for column in tokens.unbind(dim=1):
            outputs.append(self._read(column))
            bridge.crop(self.carry.cache, 1)
        return outputs_of.interleave([outputs_of.strip(output) for output in outputs])

    def keep(self, choice: torch.Tensor, outputs: Any) -> Any:
        """Continues each row by one of its candidates."""
        chosen = self._read(self._tokens.gather(1, choice[:, None])[:, 0])
        bridge.crop(self.carry.cache, 0)
        self._absorb(chosen)
        return outputs_of.pick(outputs, self._rows() + choice, choice.shape[0] * self.count)

    def _read(self, column: torch.Tensor) -> Any:
        return self._run(torch.cat([self.state.ids, column[:, None]], dim=-1))

    def _fold(self, cache: Cache) -> None:
        pass
