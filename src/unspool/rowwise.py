"""Settings that differ from row to row: processors, criteria and randomness that know which row is whose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from unspool import afresh

__all__ = ["RowCriterion", "RowProcessor", "RowRandom", "merged_criteria", "merged_processors"]

Groups = Sequence[Sequence[int]]


class RowProcessor(LogitsProcessor):
    """Several processors of one kind, each for some rows.

    Args:
        groups: The rows of each.
        processors: The processors; None where rows have none of this kind.
    """

    def __init__(self, groups: Groups, processors: Sequence[Any]) -> None:
        self._parts = [(list(rows), _for_rows(it, rows)) for rows, it in zip(groups, processors, strict=True)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores, each row's after its own processor."""
        made = scores.clone()
        for rows, processor in self._parts:
            if processor is not None:
                made[rows] = processor(input_ids[rows], scores[rows])
        return made


class RowCriterion(StoppingCriteria):
    """Several criteria of one kind, each for some rows.

    Args:
        groups: The rows of each.
        criteria: The criteria; None where rows have none of this kind.
    """

    def __init__(self, groups: Groups, criteria: Sequence[Any]) -> None:
        self._parts = [(list(rows), it) for rows, it in zip(groups, criteria, strict=True)]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Which rows end, each by its own criterion."""
        done = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for rows, criterion in self._parts:
            if criterion is not None:
                done[rows] = torch.as_tensor(criterion(input_ids[rows], scores, **kwargs), device=done.device)
        return done

    def of(self, row: int) -> Any:
        """The criterion of a row."""
        return next(criterion for rows, criterion in self._parts if row in rows)


class RowRandom:
    """A source of randomness for each row: a row says what it would say alone, with that seed.

    Args:
        seeds: The seed of each row.
        device: Where numbers are drawn.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.device = device
        self._sources = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def draw(self, probabilities: torch.Tensor) -> torch.Tensor:
        """One token a row: int64 `(rows,)`."""
        rows = zip(probabilities, self._sources, strict=True)
        return torch.cat([torch.multinomial(row, num_samples=1, generator=source) for row, source in rows])

    def get_state(self) -> torch.Tensor:
        """The state of all, a row each."""
        return torch.stack([source.get_state() for source in self._sources])

    def set_state(self, state: torch.Tensor) -> None:
        """Puts it back."""
        for source, its in zip(self._sources, state, strict=True):
            source.set_state(its.clone())  # a view would be read from the beginning of its storage


def merged_processors(groups: Groups, lists: Sequence[LogitsProcessorList]) -> LogitsProcessorList:
    """The processors of several groups of rows as one list, in the order that they have in each."""
    return LogitsProcessorList(_merged(groups, lists, RowProcessor))


def merged_criteria(groups: Groups, lists: Sequence[StoppingCriteriaList]) -> StoppingCriteriaList:
    """The criteria of several groups of rows as one list, in the order that they have in each."""
    return StoppingCriteriaList(_merged(groups, lists, RowCriterion))


def _merged(groups: Groups, lists: Sequence[Sequence[Any]], by_row: Any) -> list[Any]:
    left = [list(each) for each in lists]
    made = []
    while any(left):
        key = next(_key(each[0]) for each in left if each and not _comes_later(_key(each[0]), left))
        found = [each.pop(0) if each and _key(each[0]) == key else None for each in left]
        same = None not in found and all(_same(found[0], other) for other in found[1:])
        made.append(found[0] if same else by_row(groups, found))
    return made


def _key(thing: Any) -> Any:
    return type(thing) if type(thing).__module__.startswith("transformers.") else id(thing)


def _comes_later(key: Any, lists: Sequence[Sequence[Any]]) -> bool:
    return any(key in map(_key, each[1:]) and _key(each[0]) != key for each in lists if each)


def _same(one: Any, other: Any) -> bool:
    return one is other or afresh.equal(dict(vars(one)), dict(vars(other)))


def _for_rows(processor: Any, rows: Sequence[int]) -> Any:
    """A processor that holds something for each row, with that of some rows."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(ignored, torch.Tensor) or not ignored.ndim:
        return processor
    made = copy.copy(processor)
    made.prompt_ignore_length = ignored[list(rows)]
    return made
