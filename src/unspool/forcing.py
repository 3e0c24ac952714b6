"""Tokens that rows will take next, whatever the model says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["Forced"]


@dataclass(frozen=True, slots=True)
class Forced:
    """The tokens that wait, for each row. Immutable: whoever kept an earlier one can go back to it.

    Attributes:
        waiting: For each row that has some, its tokens in order.
    """

    waiting: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any token waits."""
        return bool(self.waiting)

    def add(self, rows: Iterable[int], tokens: Sequence[int]) -> Forced:
        """These, and after them some tokens for some rows."""
        return Forced({**self.waiting, **{row: (*self.waiting.get(row, ()), *tokens) for row in rows}})

    def drop(self, rows: Iterable[int]) -> Forced:
        """These without those of some rows."""
        gone = set(rows)
        return Forced({row: tokens for row, tokens in self.waiting.items() if row not in gone})

    def next(self) -> tuple[dict[int, int], Forced]:
        """The next token of each row that has some, and what waits after it."""
        rest = {row: tokens[1:] for row, tokens in self.waiting.items() if len(tokens) > 1}
        return {row: tokens[0] for row, tokens in self.waiting.items()}, Forced(rest)

    def put(self, tokens: torch.Tensor, live: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Forced]:
        """Puts the next tokens in the place of those that were chosen.

        Args:
            tokens: int64 `(rows,)`.
            live: bool `(rows,)`: the rows that take a token.

        Returns:
            The tokens; bool `(rows,)`, which of them were put there; and what waits after them.
        """
        now, rest = self.next()
        mask = torch.zeros_like(live)
        mask[list(now)] = True
        given = torch.zeros_like(tokens)
        given[list(now)] = torch.tensor(list(now.values()), dtype=tokens.dtype, device=tokens.device)
        mask &= live
        return torch.where(mask, given, tokens), mask, rest
