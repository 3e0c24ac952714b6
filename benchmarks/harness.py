"""Interleaved runs, medians, and the table they come to."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Benchmark", "Row", "benchmark", "interleaved", "known", "ratio"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        work: What was done.
        value: Ours over transformers', unless the name of the work says otherwise.
        bar: The most that `value` may be; None for a figure that is only shown.
        spread: The quartiles of the ratios of single runs.
        runs: Interleaved runs.
    """

    work: str
    value: float
    bar: float | None = None
    spread: tuple[float, float] = (float("nan"), float("nan"))
    runs: int = 0

    @property
    def met(self) -> bool | None:
        """Whether the bar was met; None if there is none."""
        return None if self.bar is None else self.value <= self.bar


@dataclass(frozen=True)
class Benchmark:
    """A named measurement that gives some rows."""

    name: str
    run: Callable[[int], Iterator[Row]] = field(compare=False)


_known: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Callable[[int], Iterator[Row]]], Callable[[int], Iterator[Row]]]:
    """Registers a measurement: a generator of rows that is told how many runs to make."""

    def register(run: Callable[[int], Iterator[Row]]) -> Callable[[int], Iterator[Row]]:
        _known[name] = Benchmark(name, run)
        return run

    return register


def known() -> dict[str, Benchmark]:
    """All registered measurements, by name."""
    return dict(_known)


def interleaved(works: Sequence[Callable[[], dict[str, float]]], runs: int) -> list[list[dict[str, float]]]:
    """Runs some works in turn, A B B A A B, after one turn that is not counted, with the collector off inside each.

    Args:
        works: Each does its work once and returns what it measured, by name.
        runs: How often each is run.

    Returns:
        For each work, what its runs measured.
    """
    found: list[list[dict[str, float]]] = [[] for _ in works]
    for number in range(runs + 1):
        turn = list(zip(works, found, strict=True))
        for work, results in turn if number % 2 else reversed(turn):
            gc.collect()
            gc.disable()
            try:
                measured = work()
            finally:
                gc.enable()
            if number:
                results.append(measured)
    return found


def ratio(work: str, ours: Sequence[float], theirs: Sequence[float], bar: float | None) -> Row:
    """The ratio of medians, and the quartiles of the ratios run by run."""
    single = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(single, n=4) if len(single) > 1 else (single[0],) * 3
    return Row(work, statistics.median(ours) / statistics.median(theirs), bar, (low, high), len(single))
