"""The books on every row: which are live, how the others ended, and what they will be made to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from unspool.forcing import Forced
from unspool.records import Finish, FinishReason

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from unspool.endings import Endings

__all__ = ["Books"]

T = TypeVar("T")


class Books:
    """What a run knows about its rows. The base of `DecodingState`.

    Attributes:
        ids: int64 `(rows, length)`: all tokens so far, prompt included.
        live: bool `(rows,)`: the rows that have not ended.
        running: Whether any row is live; a plain bool, free to read.
        finishes: How each row ended; None while it is live.
        forced: The tokens that rows will take next, whatever is chosen for them.
        memory: What methods keep from one step to the next; see `recall`.
        row_configs: The settings of each row, where they differ; else None.
        history: The scores of all steps, for criteria that read them; None if none are kept.
        turn: How often the state has been taken elsewhere than its method left it. The method then begins anew.
    """

    ids: torch.Tensor
    endings: Endings
    pad: torch.Tensor | None
    history: tuple[torch.Tensor, ...] | None

    def open_books(self) -> None:
        """Begins with all rows live."""
        rows = self.ids.shape[0]
        self.live = torch.ones(rows, dtype=torch.bool, device=self.ids.device)
        self.running = True
        self.finishes: tuple[Finish | None, ...] = (None,) * rows
        self.stopped: dict[int, Finish] = {}
        self.forced = Forced()
        self.memory: dict[str, Any] = {}
        self.turn = 0
        self.row_configs: tuple[GenerationConfig, ...] | None = None

    def fill(self) -> torch.Tensor | int | None:
        """What ended rows take; None if they may go on saying whatever the model does, as in transformers."""
        if self.endings.has_eos:
            return self.pad
        stopped = any(finish is not None and finish.reason is FinishReason.STOPPED for finish in self.finishes)
        return None if not stopped else 0 if self.pad is None else self.pad

    def note(self, ended: dict[int, Finish]) -> None:
        """Writes down how some rows have ended."""
        self.finishes = tuple(ended.get(row, finish) for row, finish in enumerate(self.finishes))
        self.running = None in self.finishes

    def end(self, rows: Iterable[int], finish: Finish) -> None:
        """Ends some live rows here; the next step tells of it, if one comes."""
        ended = {row: finish for row in rows if self.finishes[row] is None}
        self.note(ended)
        self.stopped = self.stopped | ended
        self.live = self.live.clone()
        self.live[list(ended)] = False
        self.forced = self.forced.drop(ended)

    def longer_history(self, scores: torch.Tensor | None) -> tuple[torch.Tensor, ...] | None:
        """The scores of all steps with those of one more, if they are kept."""
        return self.history if self.history is None or scores is None else (*self.history, scores)

    def recall(self, name: str, make: Callable[[], T]) -> T:
        """What a method keeps from one step to the next, made at the first time.

        A method that keeps all it knows here can be begun anew at any step: so a stream can be rewound or forked. An
        object that changes has a method `copied(state)`, which gives one for a copy of the state.
        """
        if name not in self.memory:
            self.memory[name] = make()
        kept: T = self.memory[name]
        return kept
