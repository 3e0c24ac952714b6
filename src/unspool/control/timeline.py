"""What a run remembers of its steps, so that it can go back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unspool import afresh, bridge
from unspool import cache as caches
from unspool.forcing import Forced
from unspool.records import Finish
from unspool.rowwise import RowRandom

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from unspool.endings import Endings
    from unspool.plan import Plan
    from unspool.state import DecodingState

__all__ = ["Mark", "Snapshot", "Timeline", "random_state", "set_random_state", "source_of"]

_LONGEST = 8192  # marks; of a sampling run each holds 5 kB


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the books stood after a step. Light: what is large is cut back to it, or in a snapshot."""

    steps: int
    forwards: int
    drafted: int
    accepted: int
    live: torch.Tensor
    running: bool
    finishes: tuple[Finish | None, ...]
    stopped: Mapping[int, Finish]
    forced: Forced
    history: int | None
    plan: Plan
    config: GenerationConfig
    built: Any
    endings: Endings
    row_configs: tuple[GenerationConfig, ...] | None
    pad: torch.Tensor | None
    kept: tuple[Any, ...]
    random: Any
    users: afresh.Kept


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as it was after a step, cache included.

    Attributes:
        state: A copy of its state, which stays as it is.
        random: The state of its source of randomness.
        users: What the caller's processors and criteria held.
        commanded: Whether a command was given after the step.
    """

    state: DecodingState
    random: Any
    users: afresh.Kept
    commanded: bool


class Timeline:
    """The marks and snapshots of a run.

    Args:
        every: After how many steps a snapshot is taken; None for never.
    """

    def __init__(self, every: int | None = None) -> None:
        self.every = every
        self.marks: deque[Mark] = deque(maxlen=_LONGEST)
        self.snapshots: list[Snapshot] = []
        self.kwargs: dict[str, Any] = {}
        self.outputs: Any = None
        self.width = self.cached = self.first = 0

    def begin(self, state: DecodingState) -> None:
        """Notes what the run begins with, once the prompt has been read."""
        if self.marks:
            return
        self.first = state.steps
        carry = state.carried
        self.kwargs, self.width = dict(carry.kwargs), state.width
        self.cached = caches.length(carry.cache)
        self.outputs = state.ready_outputs()
        self.mark(state)

    def mark(self, state: DecodingState) -> None:
        """Notes where the books stand."""
        users = (*state.plan.processors, *state.plan.criteria)
        self.marks.append(
            Mark(
                steps=state.steps,
                forwards=state.forwards,
                drafted=state.drafted,
                accepted=state.accepted,
                live=state.live,
                running=state.running,
                finishes=state.finishes,
                stopped=state.stopped,
                forced=state.forced,
                history=None if state.history is None else len(state.history),
                plan=state.plan,
                config=state.config,
                built=state.built,
                endings=state.endings,
                row_configs=state.row_configs,
                pad=state.pad,
                kept=state.carried.kept.held(),
                random=random_state(state) if state.config.do_sample else None,
                users=afresh.keep(users) if users else (),
            )
        )

    def find(self, steps: int) -> Mark | None:
        """The mark after so many steps; None if it is too long ago."""
        if not self.marks:
            return None
        place = steps - self.marks[0].steps
        return self.marks[place] if 0 <= place < len(self.marks) else None

    def nearest(self, steps: int) -> Snapshot | None:
        """The last snapshot from which a step is reached without a command in between."""
        fit = [it for it in self.snapshots if it.state.steps < steps or (it.state.steps == steps and not it.commanded)]
        return fit[-1] if fit else None

    def forget(self, steps: int) -> None:
        """Drops what came after a step."""
        while self.marks and self.marks[-1].steps > steps:
            self.marks.pop()
        self.snapshots = [
            it for it in self.snapshots if it.state.steps < steps or (it.state.steps == steps and not it.commanded)
        ]


def random_state(state: DecodingState) -> Any:
    """The state of a run's source of randomness, its own or torch's."""
    if state.generator is not None:
        return state.generator.get_state()
    return bridge.global_random_state(state.ids.device)


def source_of(random: torch.Tensor, device: torch.device) -> torch.Generator | RowRandom:
    """A source of randomness in some state: one for all rows, or one for each."""
    source = RowRandom([0] * len(random), device) if random.ndim > 1 else torch.Generator(device)
    source.set_state(random.clone())
    return source


def set_random_state(state: DecodingState, random: Any) -> None:
    """Puts it back."""
    if random is None:
        return
    if state.generator is not None:
        state.generator.set_state(random)
    else:
        bridge.set_global_random_state(state.ids.device, random)
