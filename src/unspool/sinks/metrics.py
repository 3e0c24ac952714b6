"""How fast a stream is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from unspool.records import Event, Finish, Opening, PrefillProgress, Result, Step

__all__ = ["Metrics", "MetricsSink"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """What was measured of a stream. Times are in seconds; None where it has not come to that.

    Attributes:
        prompt_tokens: Prompt positions of all prompts, padding included.
        reused_tokens: Those of them that a cache given by the caller held already, in each row.
        new_tokens: Tokens that live rows have taken, in all rows together.
        steps: Steps made.
        first_token: From the beginning of the run, before any encoder, to its first step.
        per_token: From step to step, after the first.
        total: From the beginning of the run to its end, or until now.
        drafted: Steps whose token came from a draft.
        forwards: Forwards that gave a step.
        finishes: How each row ended, once it has.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    first_token: float | None = None
    per_token: float | None = None
    total: float | None = None
    drafted: int = 0
    forwards: int = 0
    finishes: tuple[Finish, ...] = ()

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens of all rows over the whole time."""
        return self.new_tokens / self.total if self.total else None


class MetricsSink:
    """Measures a stream while it runs.

    Time that the consumer takes between steps counts as well: it is what a user waits.

    Args:
        clock: Tells the time in seconds; the run's beginning is told by `time.perf_counter`, so another clock should
            agree with it.

    Attributes:
        metrics: What has been measured so far.

    Example:
        >>> from unspool import generate_stream
        >>> sink = MetricsSink()
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4).to(sink)
        >>> sink.metrics.prompt_tokens, sink.metrics.new_tokens, sink.metrics.first_token > 0
        (3, 4, True)
    """

    retracts = True

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._metrics = Metrics()
        self._began = self._first = self._latest = 0.0
        self._until: float | None = None
        self._forward = -1

    def open(self, opening: Opening) -> None:
        """Notes when the run began."""
        self._began = opening.began
        prompts = opening.rows // opening.rows_per_prompt
        self._metrics = Metrics(prompt_tokens=prompts * opening.prompt_ids.shape[1])

    def take(self, event: Event) -> None:
        """Notes when a step came."""
        now = self._metrics
        if isinstance(event, PrefillProgress):
            self._metrics = replace(now, reused_tokens=event.reused)
        if not isinstance(event, Step):
            return
        taken = int(event.live.sum())  # waits for the device, so that times are those of finished work
        self._latest = self._clock()
        self._first = self._latest if not now.steps else self._first
        self._metrics = replace(
            now,
            new_tokens=now.new_tokens + taken,
            steps=now.steps + 1,
            first_token=self._first - self._began,
            per_token=(self._latest - self._first) / now.steps if now.steps else None,
            drafted=now.drafted + event.drafted,
            forwards=now.forwards + (event.forward != self._forward),
        )
        self._forward = event.forward

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Notes when the run ended."""
        self._until = self._clock()
        self._metrics = replace(self._metrics, finishes=() if result is None else result.finishes)

    @property
    def metrics(self) -> Metrics:
        """What has been measured so far."""
        until = self._clock() if self._until is None else self._until
        return replace(self._metrics, total=until - self._began) if self._began or self._until else self._metrics
