"""Constrained beam search: sequences that contain certain phrases.

At every step, beams are also continued by the tokens that bring their next phrase forward. Continuations are
sorted into banks by how much of the phrases they have said, and the beams to keep are taken from the banks in
turn, the fullest first. Only sequences with all phrases end; if there are none at the limit, the likeliest others
are returned.

Papers: Anderson et al., "Guided Open Vocabulary Image Captioning with Constrained Beam Search" (2017);
Post and Vilar, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from unspool import bridge
from unspool.decoding.phrases import Progress, constraints_of
from unspool.decoding.pools import Continuation, PooledSearch
from unspool.decoding.registry import Decoding, decoding_method

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["constrained"]

_BANK = 100
"""What a token of a phrase is worth beside log-probabilities, as transformers has it."""


class ConstrainedSearch(PooledSearch):
    """A beam search whose sequences are to contain some phrases.

    Args:
        state: The state.
    """

    def __init__(self, state: DecodingState) -> None:
        super().__init__(state)
        self.constraints = constraints_of(state.config)

    def may_end(self, row: int) -> bool:
        """Whether a beam contains all phrases."""
        return self._progress(self.state.ids[row].tolist()).completed

    def rearrange(self, prompt: int, chosen: list[Continuation], totals: torch.Tensor) -> list[Continuation]:
        """The continuations that go on: the best of each bank, of the likeliest and of those that say a phrase."""
        rows = range(prompt * self.beams, (prompt + 1) * self.beams)
        ids = dict(zip(rows, self.state.ids[rows.start : rows.stop].tolist(), strict=True))
        sequences = [[*ids[it.parent], it.token] for it in chosen]
        progress = [self._progress(sequence) for sequence in sequences]
        added: list[tuple[int, int]] = []
        for row in rows:
            before = self._progress(ids[row])
            for token in before.wanted():
                after = before.copy()
                after.take(token)
                sequence = [*ids[row], token]
                if sequence not in sequences:
                    sequences.append(sequence)
                    progress.append(after)
                    added.append((row, token))
        if not added:
            return chosen
        parents, tokens = torch.tensor(added, device=totals.device).unbind(dim=1)
        scores = torch.cat([totals.new_tensor([it.score for it in chosen]), totals[parents, tokens]])
        banks = [each.bank() for each in progress]
        every = [(it.parent, it.token) for it in chosen] + added
        values = scores.tolist()
        return [Continuation(values[i], *every[i]) for i in _in_turn(banks, scores)[: self.beams]]

    def last(self, rows: Sequence[int], ids: torch.Tensor) -> Sequence[int]:
        """The beams with all phrases, and the others after them if those are too few to return."""
        complete = [row for row in rows if self._progress(ids[row].tolist()).completed]
        others = [row for row in rows if row not in complete] if len(complete) < self.returned else []
        return [*complete, *others]

    def _progress(self, ids: Sequence[int]) -> Progress:
        return Progress(self.constraints).after(ids)


@decoding_method("constrained_beam_search", rewinds="copies", searches=ConstrainedSearch)
def constrained(state: DecodingState) -> Decoding:
    """Keeps the likeliest continuations of every stage of progress."""
    state.processors = bridge.former_processors(state.built, state.plan.processors)
    search = state.recall("search", lambda: ConstrainedSearch(state))
    state.settle = search.result
    while state.running:
        scores = state.score(torch.log_softmax(state.forward(), dim=-1))
        totals = scores + search.scores[:, None]
        state.show(totals)
        search.place(0, totals)
        yield search.advance()


def _in_turn(banks: list[int], scores: torch.Tensor) -> list[int]:
    """The order in which banks take turns: the best of each, fullest bank first, then the second of each ..."""
    order = (torch.tensor(banks, device=scores.device) * _BANK + scores).sort(descending=True).indices.tolist()
    turns: list[int] = []
    for place, i in enumerate(order):
        again = place > 0 and banks[i] == banks[order[place - 1]]
        turns.append(turns[-1] + 1 if again else 0)
    return [order[place] for place in sorted(range(len(order)), key=turns.__getitem__)]
