"""Best of n: sample several continuations of each prompt with one prefill, and keep the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unspool.api import generate_stream
from unspool.errors import ArgumentError
from unspool.events import Retract
from unspool.records import Event, Opening, Result, Step
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["BestOf", "Candidate", "best_of"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One continuation of a prompt.

    Attributes:
        prompt: The index of its prompt.
        sample: Its index among the continuations of that prompt.
        ids: Its new tokens, without padding.
        logprobs: Their log-probabilities, one for each.
        score: What it is ranked by.
    """

    prompt: int
    sample: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float = float("nan")

    @property
    def mean_logprob(self) -> float:
        """The mean of the log-probabilities; minus infinity for an empty continuation."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else float("-inf")


class BestOf:
    """A sink that ranks the rows of each prompt when the run has ended.

    Args:
        score: What a candidate is ranked by, the larger the better; by default the mean log-probability of its
            tokens under the distribution they were drawn from.

    Attributes:
        ranking: After closing: for each prompt its candidates, best first.
    """

    retracts = True

    def __init__(self, score: Callable[[Candidate], float] | None = None) -> None:
        self._score = score if score is not None else lambda candidate: candidate.mean_logprob
        self.ranking: tuple[tuple[Candidate, ...], ...] = ()

    def open(self, opening: Opening) -> None:
        """Makes room for each row."""
        self._count = opening.rows_per_prompt
        self._ids: list[list[int]] = [[] for _ in range(opening.rows)]
        self._logprobs: list[list[float]] = [[] for _ in range(opening.rows)]

    def take(self, event: Event) -> None:
        """Notes each live row's token."""
        if isinstance(event, Retract):
            for ids, logprobs in zip(self._ids, self._logprobs, strict=True):
                del ids[event.index :], logprobs[event.index :]  # rows take a token at every step until they end
        if not isinstance(event, Step):
            return
        columns = (event.live.tolist(), event.tokens.tolist(), event.logprobs.tolist())
        for row, (live, token, logprob) in enumerate(zip(*columns, strict=True)):
            if live:
                self._ids[row].append(token)
                self._logprobs[row].append(logprob)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Ranks what there is."""
        if result is None:
            return
        rows = range(len(self._ids))
        prompts = [rows[start : start + self._count] for start in range(0, len(rows), self._count)]
        self.ranking = tuple(self._rank(prompt, group) for prompt, group in enumerate(prompts))

    def _rank(self, prompt: int, rows: range) -> tuple[Candidate, ...]:
        found = []
        for sample, row in enumerate(rows):
            plain = Candidate(prompt, sample, tuple(self._ids[row]), tuple(self._logprobs[row]))
            found.append(Candidate(prompt, sample, plain.ids, plain.logprobs, float(self._score(plain))))
        return tuple(sorted(found, key=lambda candidate: candidate.score, reverse=True))

    @property
    def best(self) -> tuple[Candidate, ...]:
        """The best candidate of each prompt."""
        return tuple(candidates[0] for candidates in self.ranking)


def best_of(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    *,
    n: int,
    score: Callable[[Candidate], float] | None = None,
    **kwargs: Any,
) -> tuple[Stream, BestOf]:
    """Samples `n` continuations of each prompt, from one reading of it, and ranks them.

    Args:
        model: The model.
        inputs: The prompts, as for `generate_stream`.
        n: How many continuations to sample.
        score: What to rank them by; by default their mean log-probability.
        **kwargs: As for `generate_stream`.

    Returns:
        The stream, in which row `r` is continuation `r % n` of prompt `r // n`, and the ranking, which is there
        once the stream has ended.

    Raises:
        ArgumentError: `n` is not a positive number, or beams were asked for.

    Example:
        >>> stream, ranking = best_of(tiny_model(), torch.tensor([[5, 6, 7]]), n=4, max_new_tokens=3, seed=0)
        >>> for step in stream:
        ...     assert step.tokens.shape == (4,)
        >>> best = ranking.best[0]
        >>> len(best.ids), best.score == max(c.score for c in ranking.ranking[0])
        (3, True)
    """
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={n!r} is not a number of continuations; give 1 or more.")
    if (kwargs.get("num_beams") or 1) > 1:
        raise ArgumentError("best_of samples; beams are searched with generate_stream(num_beams=...).")
    ranking = BestOf(score)
    sinks = [ranking, *kwargs.pop("sinks", ())]
    stream = generate_stream(model, inputs, num_return_sequences=n, do_sample=True, sinks=sinks, **kwargs)
    return stream, ranking
