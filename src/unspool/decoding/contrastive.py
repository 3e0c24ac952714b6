"""Contrastive search: likely tokens, as long as they don't repeat what was said before.

Of the `top_k` likeliest tokens, the one is taken whose probability, less its likeness to the text so far, is
highest: `(1 - alpha) * probability - alpha * likeness`. Likeness is the largest cosine between the hidden state
that a token leads to and those of all tokens before. To know it, the model reads all candidates at each step,
so it is always one forward ahead: `n` steps take `n + 1` forwards.

Paper: Su et al., "A Contrastive Framework for Neural Text Generation" (2022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unspool import bridge
from unspool.decoding.registry import Decoding, decoding_method
from unspool.lookahead import LookAhead, OneByOne

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["contrastive"]


@decoding_method("contrastive_search", hidden_states="all")
def contrastive(state: DecodingState) -> Decoding:
    """Takes, of the likeliest tokens, the one that repeats the text least."""
    state.processors = bridge.former_processors(state.built, state.plan.processors)
    config, family = state.config, state.plan.family
    count = min(int(config.top_k), state.plan.model.config.get_text_config(decoder=True).vocab_size)
    text = Text(state)
    ahead = (OneByOne if config.low_memory else LookAhead)(state, count)
    try:
        logits = state.forward()
        outputs, width, forward = state.outputs, state.width, state.forwards - 1
        while state.running:
            scores = state.score(logits)
            probabilities, candidates = torch.softmax(scores, dim=-1).topk(count)
            read = ahead.forward(candidates)
            hidden = read[family.prefix + "hidden_states"][-1].reshape(*candidates.shape, -1)
            choice = text.choose(hidden, probabilities, config.penalty_alpha)
            state.present(outputs, logits, scores, width, forward)
            outputs, width, forward = ahead.keep(choice, read), 1, state.forwards - 1
            logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=state.ids.device)
            yield state.append(candidates.gather(1, choice[:, None])[:, 0])
    finally:
        ahead.close()


class Text:
    """The hidden states of the text so far, each of length one.

    Args:
        state: The state, before its first forward.
    """

    def __init__(self, state: DecodingState) -> None:
        assert state.context is not None  # the method asks for it
        self._states = _unit(state.context)
        self._bar = torch.zeros(self._states.shape[:2], dtype=self._states.dtype, device=self._states.device)
        mask = state.carried.kwargs.get(state.plan.family.prefix + "attention_mask")
        if mask is not None:  # padding resembles nothing
            self._bar = (1 - mask.to(self._bar)) * torch.finfo(self._bar.dtype).min

    def choose(self, hidden: torch.Tensor, probabilities: torch.Tensor, alpha: float) -> torch.Tensor:
        """The best candidate of each row, int64 `(rows,)`, with which the text goes on.

        Args:
            hidden: The hidden states that the candidates lead to: `(rows, candidates, size)`.
            probabilities: Theirs: float32, `(rows, candidates)`.
            alpha: How much likeness counts.
        """
        new = _unit(hidden)
        likeness = (new @ self._states.transpose(1, 2) + self._bar[:, None]).amax(dim=-1)
        worth = (1.0 - alpha) * probabilities - alpha * likeness.to(probabilities.device)
        choice: torch.Tensor = worth.argmax(dim=-1)
        kept = new.take_along_dim(choice.to(new.device)[:, None, None], dim=1)
        self._states = torch.cat([self._states, kept], dim=1)
        self._bar = torch.nn.functional.pad(self._bar, (0, 1))
        return choice


def _unit(states: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return states / lengths
