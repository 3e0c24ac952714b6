"""Texts in the forms that callers have them in, as rows of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unspool.errors import ArgumentError

__all__ = ["Texts", "Tokens", "as_ids", "joined", "padded"]

Texts = torch.Tensor | str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""Ids `(rows, length)` or `(length,)`, lists of ids, one string or several."""


def joined(texts: Texts, tokenizer: Any, *, special: bool, mask: torch.Tensor | None = None) -> list[list[int]]:
    """The ids of each text, without padding.

    Args:
        texts: The texts.
        tokenizer: Turns strings into ids.
        special: Whether strings get the special tokens that the tokenizer adds.
        mask: 1 where ids `(rows, length)` are no padding.

    Raises:
        ArgumentError: They are of no form that is known, empty, or strings without a tokenizer.
    """
    if isinstance(texts, torch.Tensor):
        rows = texts[None] if texts.ndim == 1 else texts
        if rows.ndim != 2 or rows.is_floating_point():
            raise ArgumentError(f"Ids are integers (rows, length); given were {tuple(texts.shape)}, {texts.dtype}.")
        if mask is not None and mask.shape != rows.shape:
            raise ArgumentError(f"attention_mask has shape {tuple(mask.shape)}, but the ids {tuple(rows.shape)}.")
        kept = torch.ones_like(rows) if mask is None else mask
        return [row[keep.bool()].tolist() for row, keep in zip(rows, kept, strict=True)]
    many: Sequence[Any] = [texts] if isinstance(texts, str) or (texts and isinstance(texts[0], int)) else list(texts)
    if not many:
        raise ArgumentError("There is no text; give at least one.")
    if all(isinstance(text, str) for text in many):
        if tokenizer is None:
            raise ArgumentError("A text needs the model's tokenizer; pass it as `tokenizer=`, or give ids.")
        return [list(tokenizer(text, add_special_tokens=special)["input_ids"]) for text in many]
    if not all(isinstance(row, Sequence) and all(isinstance(i, int) for i in row) for row in many):
        raise ArgumentError(f"{type(many[0]).__name__} is no text: strings, lists of ids or a tensor of ids would do.")
    return [list(row) for row in many]


Tokens = int | str | Sequence[int] | torch.Tensor
"""Some tokens in a row: an id, ids, or text."""


def as_ids(tokens: Tokens, tokenizer: Any) -> list[int]:
    """Tokens as ids.

    Raises:
        ArgumentError: They are none, or text without a tokenizer.
    """
    if isinstance(tokens, str):
        if tokenizer is None:
            raise ArgumentError("Text needs the model's tokenizer; pass it as `tokenizer=`, or give ids.")
        ids = list(tokenizer(tokens, add_special_tokens=False)["input_ids"])
    elif isinstance(tokens, torch.Tensor):
        ids = tokens.flatten().tolist()
    else:
        ids = [tokens] if isinstance(tokens, int) else list(tokens)
    if not ids or not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ArgumentError(f"{tokens!r} is no token: an id, several ids, or text would do.")
    return ids


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids as int64 `(rows, longest)`, and their mask. They are filled up at the right with their last id.

    What comes after a token changes nothing about it, whatever the model.
    """
    longest = max(map(len, rows))
    if not min(map(len, rows)):
        raise ArgumentError("A text has no tokens; give at least one for each row.")
    ids = [list(row) + [row[-1]] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
