"""The finished hypotheses of a beam search."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch

from unspool.records import Finish, FinishReason

__all__ = ["Hypotheses"]

_NONE = -1.0e9


class Hypotheses:
    """For each prompt the best hypotheses that have finished, as many as there are beams, best first.

    Args:
        ids: int64 `(prompts, beams, length)`: what the beams begin with; stands where there is no hypothesis yet.
        fill: What shorter ones are filled up with at the right.

    Attributes:
        ids: int64 `(prompts, beams, length)`.
        scores: float32 `(prompts, beams)`: after the length penalty.
        choices: int32 `(prompts, beams, steps)`: the beam that each new token was chosen on; -1 past the end.
        done: bool `(prompts, beams)`: whether there is a hypothesis.
    """

    def __init__(self, ids: torch.Tensor, fill: int) -> None:
        self._fill = fill
        self._start = ids.shape[-1]
        shape = ids.shape[:2]
        self.ids = ids.clone()
        self.scores = torch.full(shape, _NONE, device=ids.device)
        self.choices = torch.empty((*shape, 0), dtype=torch.int32, device=ids.device)
        self.done = torch.zeros(shape, dtype=torch.bool, device=ids.device)
        self._finishes: list[list[Finish | None]] = [[None] * shape[1] for _ in range(shape[0])]

    def offer(
        self,
        ids: torch.Tensor,
        scores: torch.Tensor,
        choices: torch.Tensor,
        finished: torch.Tensor,
        finishes: Mapping[int, Finish],
    ) -> None:
        """Keeps the best of those kept and some candidates, each one token longer than at the last offer.

        Args:
            ids: int64 `(prompts, n, length)`.
            scores: float32 `(prompts, n)`.
            choices: int32 `(prompts, n, steps)`.
            finished: bool `(prompts, n)`: which candidates have finished.
            finishes: How, by candidate, counted over all prompts.
        """
        merged = torch.cat([self.scores, scores], dim=1)
        index = torch.topk(merged, k=self.scores.shape[1]).indices
        ids_before, choices_before = (_longer(t, fill) for t, fill in ((self.ids, self._fill), (self.choices, -1)))
        self.ids = torch.cat([ids_before, ids], dim=1).take_along_dim(index[:, :, None], dim=1)
        self.choices = torch.cat([choices_before, choices], dim=1).take_along_dim(index[:, :, None], dim=1)
        self.done = torch.cat([self.done, finished], dim=1).gather(1, index)
        self.scores = merged.gather(1, index)
        if finishes:
            self._follow(index.tolist(), finishes, scores.shape[1])

    def _follow(self, index: list[list[int]], finishes: Mapping[int, Finish], width: int) -> None:
        for prompt, chosen in enumerate(index):
            new = [finishes.get(prompt * width + i) for i in range(width)]
            self._finishes[prompt] = [[*self._finishes[prompt], *new][i] for i in chosen]

    def lengths(self) -> torch.Tensor:
        """How long each hypothesis is, what they begin with included: int64 `(prompts, beams)`; 0 for none."""
        return ((self.choices >= 0).sum(dim=-1) + self._start) * self.done

    def best(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Finish, ...]]:
        """The best `count` of each prompt, flattened: ids, scores, choices and how they ended."""
        missing = Finish(FinishReason.STOPPED)
        ended = tuple(finish or missing for row in self._finishes for finish in row[:count])
        ids, scores, choices = (tensor[:, :count].flatten(0, 1) for tensor in (self.ids, self.scores, self.choices))
        return ids, scores, choices, ended

    def saved(self) -> dict[str, Any]:
        """All of it as plain data and tensors."""
        tensors = {name: getattr(self, name) for name in ("ids", "scores", "choices", "done")}
        return {**tensors, "start": self._start, "finishes": [list(row) for row in self._finishes]}

    def load(self, saved: dict[str, Any]) -> None:
        """Takes up what was saved."""
        for name in ("ids", "scores", "choices", "done"):
            setattr(self, name, saved[name])
        self._start, self._finishes = int(saved["start"]), [list(row) for row in saved["finishes"]]

    def copied(self) -> Hypotheses:
        """The same, to go on with apart."""
        made = copy.copy(self)
        made.ids, made.choices = self.ids.clone(), self.choices.clone()
        made.scores, made.done = self.scores.clone(), self.done.clone()
        made._finishes = [list(row) for row in self._finishes]
        return made

    def filled_up(
        self,
        ids: torch.Tensor,
        scores: torch.Tensor,
        choices: torch.Tensor,
        finish: Finish,
        only: Collection[int] | None = None,
    ) -> Hypotheses:
        """These, with running beams in the places that are empty; of some prompts only, if they are named."""
        made = self.copied()
        for prompt, row in enumerate(self.done.tolist()):
            if only is not None and prompt not in only:
                continue
            empty = [slot for slot, done in enumerate(row) if not done]
            for beam, slot in enumerate(empty):
                made.ids[prompt, slot], made.choices[prompt, slot] = ids[prompt, beam], choices[prompt, beam]
                made.scores[prompt, slot] = scores[prompt, beam]
                made._finishes[prompt][slot] = finish
                made.done[prompt, slot] = True
        return made


def _longer(tensor: torch.Tensor, fill: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (0, 1), value=fill)
