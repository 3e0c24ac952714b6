"""Diverse beam search: groups of beams, each of which avoids what the groups before it say.

The beams of a prompt are divided into groups that search one after the other at every step. A token costs a group
`diversity_penalty` for every beam of an earlier group that has just taken it.

Paper: Vijayakumar et al., "Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence Models" (2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from unspool import bridge
from unspool.decoding.pools import PooledSearch
from unspool.decoding.registry import Decoding, decoding_method

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["HammingDiversity", "diverse"]


def grouped(state: DecodingState) -> PooledSearch:
    """The books of the search."""
    return PooledSearch(state, int(state.config.num_beam_groups))


@decoding_method("group_beam_search", rewinds="copies", searches=grouped)
def diverse(state: DecodingState) -> Decoding:
    """Keeps the likeliest continuations of each group, given what the groups before it chose."""
    search = state.recall("search", lambda: grouped(state))
    state.processors = _processors(state, search)
    state.settle = search.result
    while state.running:
        logprobs = torch.log_softmax(state.forward(), dim=-1)
        shown = torch.empty_like(logprobs)
        for group, rows in enumerate(search.rows.flatten(1)):
            context = {"current_tokens": search.tokens, "beam_group_idx": group}
            shown[rows] = scores = state.process(state.ids[rows], logprobs[rows], **context)
            search.place(group, scores + search.scores[rows, None])
        state.show(shown)
        yield search.advance()


class HammingDiversity(LogitsProcessor):
    """Makes tokens less likely that beams of earlier groups have just taken.

    Args:
        penalty: What each such beam takes off a token's log-probability.
        beams: Beams of a prompt.
        size: Beams of a group.
    """

    def __init__(self, penalty: float, beams: int, size: int) -> None:
        self.penalty, self.beams, self.size = penalty, beams, size

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, current_tokens: torch.Tensor, beam_group_idx: int
    ) -> torch.Tensor:
        """The scores of one group's rows, given the tokens that all rows have taken at this step."""
        earlier = current_tokens.view(-1, self.beams)[:, : beam_group_idx * self.size]
        if not earlier.numel():
            return scores
        taken = scores.new_zeros(earlier.shape[0], scores.shape[-1])
        taken.scatter_add_(1, earlier, torch.ones_like(earlier, dtype=scores.dtype))
        return scores - self.penalty * taken.repeat_interleave(self.size, dim=0)


def _processors(state: DecodingState, search: PooledSearch) -> LogitsProcessorList:
    """The run's processors, called with one group at a time, and the one for diversity where transformers had it."""
    config, own = state.config, state.plan.processors
    made = bridge.former_processors(state.built, own, rows_per_prompt=search.size)
    made.insert(bridge.leading_processors(made), HammingDiversity(config.diversity_penalty, search.beams, search.size))
    return made
