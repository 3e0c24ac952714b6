"""When rows end, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from unspool.errors import CriterionError
from unspool.records import Finish, FinishReason
from unspool.rowwise import RowCriterion

__all__ = ["Endings", "reads_scores"]

Hit = bool | torch.Tensor
"""Whether rows end: all of them or none, or bool `(rows,)`."""

Check = Callable[[torch.Tensor, Any], Hit]


class Endings:
    """The stopping criteria of a run, asked one by one so that each ending has a reason.

    transformers' own criteria on length, time and end-of-sequence ids are asked without making a tensor where
    the answer is the same for all rows; all others are called as they are.

    Args:
        criteria: The criteria, in the order in which they give reasons.
        tokenizer: Tells which of several stop strings it was.

    Attributes:
        criteria: The criteria.
        has_eos: Whether end-of-sequence ids end rows.
        max_length: The length that ends all rows, prompt included; None if none does.
    """

    def __init__(self, criteria: StoppingCriteriaList, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self.criteria = criteria
        self.max_length = next((c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)), None)
        self.has_eos = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._checks: list[tuple[StoppingCriteria, Check]] = [(c, _FAST.get(type(c), _ask)(c)) for c in criteria]

    def ask(self, ids: torch.Tensor, scores: Any, live: torch.Tensor) -> tuple[torch.Tensor, dict[int, Finish]]:
        """Which rows are still live after their newest token, and how the others ended.

        Args:
            ids: int64 `(rows, length)`, prompt included.
            scores: The scores so far, for criteria that read them; None if they are not kept.
            live: bool `(rows,)`: the rows that took the newest token.

        Returns:
            The rows still live, and a `Finish` for each row that ended just now.

        Raises:
            CriterionError: A criterion returned something that is not one answer a row.
        """
        hits = [(criterion, hit) for criterion, check in self._checks if (hit := check(ids, scores)) is not False]
        if not hits:
            return live, {}
        done = torch.zeros_like(live)
        for _, hit in hits:
            done = done | hit
        fresh = live & done
        rows = fresh.nonzero().flatten().tolist()
        if not rows:
            return live, {}
        return live & ~done, {row: self._finish(row, hits, ids) for row in rows}

    def _finish(self, row: int, hits: Sequence[tuple[StoppingCriteria, Hit]], ids: torch.Tensor) -> Finish:
        mine = [c for c, hit in hits if hit is True or (isinstance(hit, torch.Tensor) and bool(hit[row]))]
        mine = [c.of(row) if isinstance(c, RowCriterion) else c for c in mine]
        own = [c for c in mine if not isinstance(c, (MaxLengthCriteria, MaxTimeCriteria))]  # before any limit
        return _describe((own or mine)[0], ids[row], self._tokenizer)


def _describe(criterion: StoppingCriteria, ids: torch.Tensor, tokenizer: Any) -> Finish:
    match criterion:
        case EosTokenCriteria():
            return Finish(FinishReason.EOS, int(ids[-1]))
        case StopStringCriteria():
            strings = criterion.stop_strings
            return Finish(
                FinishReason.STOP_STRING, strings[0] if len(strings) == 1 else _which(strings, ids, tokenizer)
            )
        case MaxLengthCriteria():
            return Finish(FinishReason.MAX_LENGTH, criterion.max_length)
        case MaxTimeCriteria():
            return Finish(FinishReason.MAX_TIME, criterion.max_time)
        case _:
            return Finish(FinishReason.CRITERION, criterion)


def _which(strings: tuple[str, ...], ids: torch.Tensor, tokenizer: Any) -> str | tuple[str, ...]:
    """The stop string that ends a row; all of them if that can't be told."""
    if tokenizer is None:
        return strings
    tail = ids[-64:].tolist()
    before, after = len(tokenizer.decode(tail[:-1])), tokenizer.decode(tail)
    found = {text: after.find(text, max(0, before - len(text) + 1)) for text in strings}
    there = {text: at for text, at in found.items() if at >= 0}
    return min(there, key=lambda text: there[text]) if there else strings


def _max_length(criterion: Any) -> Check:
    def check(ids: torch.Tensor, scores: Any) -> Hit:
        length = ids.shape[1]
        if length >= criterion.max_length:
            return True
        limit = criterion.max_position_embeddings
        if limit is not None and length > limit:
            criterion(ids, scores)  # warns, once, that the model wasn't made for this length
        return False

    return check


def _max_time(criterion: Any) -> Check:
    return lambda ids, scores: time.time() - criterion.initial_timestamp > criterion.max_time


def _eos(criterion: Any) -> Check:
    def check(ids: torch.Tensor, scores: Any) -> Hit:
        wanted = criterion.eos_token_id = criterion.eos_token_id.to(ids.device)
        hit = torch.isin(ids[:, -1], wanted) if wanted.numel() != 1 else ids[:, -1] == wanted
        return hit if bool(hit.any()) else False

    return check


def _ask(criterion: Any) -> Check:
    def check(ids: torch.Tensor, scores: Any) -> Hit:
        answer = criterion(ids, scores)
        if isinstance(answer, bool):
            return answer
        if isinstance(answer, torch.Tensor) and answer.ndim == 0:
            return bool(answer)
        if not isinstance(answer, torch.Tensor) or answer.shape != ids.shape[:1] or answer.is_floating_point():
            given = f"shape {tuple(answer.shape)}, {answer.dtype}" if isinstance(answer, torch.Tensor) else repr(answer)
            raise CriterionError(
                f"The stopping criterion {type(criterion).__name__} must return a bool, or a bool tensor of shape "
                f"({ids.shape[0]},), one answer for each row; it returned {given}."
            )
        return answer.to(ids.device).bool()

    return check


def reads_scores(criterion: StoppingCriteria) -> bool:
    """Whether a criterion may read the scores: any that transformers doesn't bring along."""
    return not type(criterion).__module__.startswith("transformers.")


_FAST: dict[type, Callable[[Any], Check]] = {
    MaxLengthCriteria: _max_length,
    MaxTimeCriteria: _max_time,
    EosTokenCriteria: _eos,
}
