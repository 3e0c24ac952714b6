"""The perplexity of a text that is longer than a model can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from unspool.errors import ArgumentError
from unspool.scoring import score
from unspool.texts import Texts, joined

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["perplexity"]


def perplexity(
    model: PreTrainedModel,
    inputs: Texts,
    *,
    window: int,
    stride: int | None = None,
    tokenizer: Any = None,
) -> float:
    """The perplexity of one long text under a model that sees a window of it at a time.

    Args:
        model: A decoder-only model.
        inputs: One text.
        window: Positions that the model sees at once.
        stride: By how many the window moves; each token is scored once, with at least `window - stride` before it.
            By default half a window.
        tokenizer: The model's tokenizer, for a string.

    Raises:
        ArgumentError: There is not one text, or window and stride don't fit.

    Example:
        >>> value = perplexity(tiny_model(), [list(range(5, 45))], window=16)
        >>> value > 1
        True
    """
    stride = max(1, window // 2) if stride is None else stride
    if window < 2 or not 0 < stride < window:
        raise ArgumentError(f"window={window} and stride={stride} don't fit: 0 < stride < window would do.")
    rows = joined(inputs, tokenizer, special=True)
    if len(rows) != 1:
        raise ArgumentError(f"perplexity is of one text; inputs holds {len(rows)}. For several, call score().")
    (ids,), total, count, end = rows, 0.0, 0, min(window, len(rows[0]))
    scored = score(model, [ids[:end]])
    while True:
        total, count = total + float(scored.totals), count + int(scored.counts)
        if end == len(ids):
            return float(torch.exp(torch.tensor(-total / max(1, count))))
        last, end = end, min(end + stride, len(ids))
        scored = score(model, [ids[max(0, end - window) : last]], [ids[last:end]])
