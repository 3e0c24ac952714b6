"""Greedy search and multinomial sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unspool.decoding.registry import Decoding, decoding_method

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["greedy", "sample"]


@decoding_method("greedy_search", rewinds="ids")
def greedy(state: DecodingState) -> Decoding:
    """Takes the likeliest token at every step."""
    while state.running:
        scores = state.score(state.forward())
        yield state.append(scores.argmax(-1))


@decoding_method("sample", rewinds="ids")
def sample(state: DecodingState) -> Decoding:
    """Draws every token from the distribution that the warpers leave."""
    while state.running:
        scores = state.score(state.forward())
        yield state.append(state.draw(scores))
