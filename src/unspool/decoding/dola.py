"""DoLa: what the last layer says beyond an early one.

The early layers' hidden states go through the model's head as well. The layer whose distribution is farthest
from the last layer's, by the Jensen-Shannon divergence, is subtracted from it, over the tokens that the last
layer finds likely enough. A batch shares one choice of layer.

Paper: Chuang et al., "DoLa: Decoding by Contrasting Layers Improves Factuality in Large Language Models" (2023).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import kl_div

from unspool import bridge
from unspool.decoding.registry import Decoding, decoding_method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from unspool.state import DecodingState

__all__ = ["dola", "early_layers"]

_LIKELY = math.log(0.1)
"""How far below the likeliest token, in log-probability, a token may be."""

_UNLIKELY = -1e-3
"""What is subtracted where a token isn't likely enough; transformers' value, without effect beside infinity."""


@decoding_method("dola_generation", hidden_states="newest", rewinds="ids")
def dola(state: DecodingState) -> Decoding:
    """Takes or draws tokens from the contrast between the last layer and an early one."""
    state.processors = bridge.former_processors(state.built, state.plan.processors)
    model, sampling = state.plan.model, state.config.do_sample
    head, layers = model.get_output_embeddings(), early_layers(model, state.config.dola_layers)
    while state.running:
        last = state.forward()
        hidden = state.outputs["hidden_states"]  # type: ignore[index]
        early = torch.stack([head(hidden[layer][:, -1]).to(last.device) for layer in layers])
        scores = state.score(_contrast(last, early))
        yield state.append(state.draw(scores) if sampling else scores.argmax(dim=-1))


def early_layers(model: PreTrainedModel, wanted: str | list[int]) -> list[int]:
    """The layers to choose from; layer 0 are the embeddings. None if the model is too shallow.

    Args:
        model: The model.
        wanted: `"low"` or `"high"` for every second layer of that half (of at most twenty), or their indices.
    """
    last = model.config.get_text_config().num_hidden_layers
    if isinstance(wanted, list):
        return [layer for layer in wanted if -last <= layer + 1 <= last]
    if wanted == "high":
        return list(range(max(last // 2, last - 20), last, 2))
    first = 0
    if getattr(model.config, "tie_word_embeddings", True) and last > 1:  # the head would only undo the embeddings
        first = min(last - 1, 2)
    return [first] if first == last // 2 else list(range(first, min(last // 2, 20), 2))


def _contrast(last: torch.Tensor, early: torch.Tensor) -> torch.Tensor:
    """The last layer's log-probabilities less those of the early layer that is farthest from it.

    Args:
        last: The last layer's logits: float32, `(rows, vocab)`.
        early: Those of the early layers: `(layers, rows, vocab)`.
    """
    farthest = early[_distances(last, early).argmax()] if len(early) > 1 else early[0]
    kept, base = last.log_softmax(dim=-1), farthest.log_softmax(dim=-1)
    unlikely = kept < kept.amax(dim=-1, keepdim=True) + _LIKELY
    return kept.masked_fill(unlikely, -torch.inf) - base.masked_fill(unlikely, _UNLIKELY)


def _distances(last: torch.Tensor, early: torch.Tensor) -> torch.Tensor:
    """The Jensen-Shannon divergence of each early layer from the last, up to a factor, over the whole batch."""
    mean = 0.5 * (last.softmax(dim=-1) + early.softmax(dim=-1))
    of_last, of_early = (
        kl_div(logits.log_softmax(dim=-1), mean, reduction="none").mean(dim=-1) for logits in (last[None], early)
    )
    return (0.5 * (of_last + of_early)).mean(dim=-1)
