"""How a run is getting on: how much of the prompt is read, how fast tokens come, what else the last might have been."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.progress_bar import ProgressBar
from rich.style import Style

from unspool.detokenize import plain_tokenizer
from unspool.events import Draft
from unspool.records import Event, PrefillProgress, Step
from unspool.sinks.rows import Flow, Row, clipped
from unspool.sinks.screen import Screen

__all__ = ["Alternatives", "Drafts", "Pace", "Prefill", "Status"]

_DIM = Style(dim=True)
_LONG = 256  # tokens of a prompt, from which on reading it is shown


class Prefill:
    """How much of a long prompt has been read. A short one, or one read at one go, has been before anyone looks."""

    def __init__(self) -> None:
        self._now: PrefillProgress | None = None

    def note(self, event: Event) -> None:
        """Takes an event."""
        self._now = event if isinstance(event, PrefillProgress) else None

    def rows(self, screen: Screen) -> list[Row]:
        """A progress bar, while a prompt is being read."""
        now = self._now
        if now is None or now.done >= now.total:
            return []
        if now.total - now.reused < _LONG and now.done == now.reused:
            return []
        label = clipped(f"Reading the prompt: {now.done} of {now.total} tokens ", screen.width, _DIM)
        width = screen.width - sum(segment.cell_length for segment in label)
        if width < 1:
            return [label]
        bar = ProgressBar(total=now.total, completed=now.done, width=min(40, width))
        return [[*label, *screen.drawn(bar, width)[0]]]


class Drafts:
    """Blocks of text that may still be changed, one for each row: what is drawn dim behind what is certain.

    Args:
        tokenizer: Turns ids into text.
        skip_special_tokens: Whether special tokens have no text.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skip = plain_tokenizer(tokenizer), skip_special_tokens
        self._texts: list[str] = []

    def note(self, event: Event) -> None:
        """Takes an event: a draft, or what settles it."""
        if isinstance(event, Draft):
            self._texts = [self._tokenizer.decode(row, skip_special_tokens=self._skip) for row in event.ids.tolist()]
        elif isinstance(event, Step):
            self._texts = []

    def behind(self, flow: Flow, row: int, room: int) -> list[Row]:
        """The open row of a flow and what would come after it, as far as there is room for the end of it."""
        if row >= len(self._texts) or not self._texts[row]:
            return [flow.open]
        trial = copy.deepcopy(flow)
        return [*trial.add(self._texts[row], _DIM), trial.open][-max(1, room) :]


class Pace:
    """How many tokens there are, how fast they came, and how long the first one took.

    Args:
        began: When the run began, in seconds of the clock.
        clock: Tells the time, in seconds.
    """

    def __init__(self, began: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._began, self._clock = began, clock
        self._first = self._last = 0.0
        self._tokens = self._at_first = 0

    def note(self, event: Event) -> None:
        """Takes an event."""
        if not isinstance(event, Step):
            return
        live = event.live.view(-1, event.rows_per_prompt).any(dim=1) if event.beams is not None else event.live
        self._last = self._clock()
        if not self._tokens:
            self._first = self._last
        self._tokens += int(live.sum())
        self._at_first = self._at_first or self._tokens

    def rows(self, screen: Screen) -> list[Row]:
        """The figures on one row; none before the first token."""
        if not self._tokens:
            return []
        said = [f"{self._tokens} token{'s' if self._tokens > 1 else ''}"]
        if self._last > self._first:
            said.append(f"{(self._tokens - self._at_first) / (self._last - self._first):.1f} tokens/s")
        said.append(f"first after {self._first - self._began:.2f} s")
        return [clipped(" · ".join(said), screen.width, _DIM)]


class Alternatives:
    """The likeliest tokens in the place of the last one, and how likely they were.

    Args:
        tokenizer: The model's tokenizer.
        count: How many to name.
    """

    def __init__(self, tokenizer: Any, count: int) -> None:
        self._tokenizer, self._count = plain_tokenizer(tokenizer), count
        self._step: Step | None = None

    def note(self, event: Event) -> None:
        """Takes an event."""
        if isinstance(event, Step):
            self._step = event

    def text(self, row: int) -> str:
        """The tokens in the place of the last one of a row, the likeliest first; the one that was taken in brackets.

        If that isn't among them, it comes last.
        """
        step = self._step
        if step is None or step.beams is not None or not bool(step.live[row]):
            return ""
        probabilities = torch.softmax(step.scores[row], dim=-1)
        tokens = probabilities.topk(min(self._count, probabilities.shape[-1])).indices.tolist()
        taken = int(step.tokens[row])
        named = []
        for token in tokens if taken in tokens else [*tokens, taken]:
            word = repr(self._tokenizer.decode([token]))
            named.append(f"{f'[{word}]' if token == taken else word} {probabilities[token].item():.0%}")
        return "  ".join(named)


class Status:
    """All that is told of a run besides its text.

    Args:
        screen: Where it is shown.
        alternatives: What else the last tokens might have been, if that is asked for.
        pace: How fast it is, if that is asked for.
    """

    def __init__(self, screen: Screen, alternatives: Alternatives | None = None, pace: Pace | None = None) -> None:
        self._screen, self._alternatives, self._pace = screen, alternatives, pace
        self._prefill = Prefill()

    def note(self, event: Event) -> None:
        """Takes an event."""
        for part in (self._prefill, self._pace, self._alternatives):
            if part is not None:
                part.note(event)

    def alternatives(self, row: int) -> str:
        """What else the last token of a row might have been."""
        return self._alternatives.text(row) if self._alternatives is not None else ""

    def rows(self) -> list[Row]:
        """How much of the prompt has been read, while that goes on, and how fast tokens come."""
        return [*self._prefill.rows(self._screen), *self.pace()]

    def pace(self) -> list[Row]:
        """How fast tokens come."""
        return self._pace.rows(self._screen) if self._pace is not None else []
