"""Shows answers on a terminal as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.style import Style

from unspool.errors import ArgumentError
from unspool.records import Event, Opening, Result, TextChunk
from unspool.sinks.live import FRAME, LiveSink, View, row_names, shared, unseen
from unspool.sinks.rows import Flow, Pane, Row, clipped
from unspool.sinks.screen import BORDERS, Screen
from unspool.sinks.status import Alternatives, Drafts, Pace, Status
from unspool.text import TextStream

__all__ = ["TerminalSink"]

_COLOURS = tuple(
    (least, Style(color=colour))
    for least, colour in ((0.9, "green"), (0.5, "yellow"), (0.2, "dark_orange"), (0.0, "red"))
)


class TerminalSink(LiveSink):
    r"""Shows a run on a terminal: one answer as it comes, several in panels.

    A block that a model may still revise is drawn dim behind what is certain.

    What is final is printed once and for good, and can be scrolled back to; only the last row of a text, the panels of
    rows that have not ended and what is asked for besides are drawn anew, and are never taller than the screen. The
    text of a model is shown as it is: nothing in it is markup, and characters that steer terminals are made visible.

    Where the console is no terminal, plain text is written, as `TextSink` does.

    Args:
        console: Where to draw; by default what `sys.stdout` is when the stream begins.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        skip_special_tokens: Whether special tokens are left out.
        probabilities: Whether text is coloured by how probable its tokens were: green from 90 % on, yellow from 50 %,
            orange from 20 %, red below. Of several tokens in a piece of text the least probable one counts.
        alternatives: How many of the likeliest tokens in the place of the last one to name.
        stats: Whether tokens, tokens per second and the time to the first token are shown. They stay below the text.
        clock: Tells the time in seconds, counted from when the sink is opened; by default it is counted from the
            beginning of the run.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> from unspool import generate_stream
        >>> console = Console(file=io.StringIO(), force_terminal=True, width=40, height=10)
        >>> sink = TerminalSink(console, tokenizer=tiny_tokenizer())
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3).to(sink)
        >>> console.file.getvalue().endswith("\n\x1b[?25h")  # the text, and the cursor again
        True
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        tokenizer: Any = None,
        skip_special_tokens: bool = True,
        probabilities: bool = False,
        alternatives: int = 0,
        stats: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if isinstance(alternatives, bool) or not isinstance(alternatives, int) or alternatives < 0:
            raise ArgumentError(f"alternatives={alternatives!r} is no number of tokens; 0 or more would do.")
        super().__init__(console, tokenizer=tokenizer, skip_special_tokens=skip_special_tokens)
        self._probabilities, self._alternatives = probabilities, alternatives
        self._stats, self._clock = stats, clock

    def view(self, opening: Opening, text: TextStream, tokenizer: Any, screen: Screen) -> View:
        """One answer, or several in panels."""
        began = opening.began if self._clock is None else self._clock()
        status = Status(
            screen,
            Alternatives(tokenizer, self._alternatives) if self._alternatives else None,
            Pace(began, self._clock or time.perf_counter) if self._stats else None,
        )
        style = probability_style if self._probabilities else _no_style
        names = row_names(opening, text)
        drafts = Drafts(tokenizer, skip_special_tokens=self._skip_special)
        if len(names) == 1:
            return _Answer(screen, status, drafts, style)
        return _Answers(screen, status, drafts, style, names)


class _Answer:
    """One text, which flows down the screen."""

    def __init__(
        self, screen: Screen, status: Status, drafts: Drafts, style: Callable[[TextChunk], Style | None]
    ) -> None:
        self._screen, self._status, self._drafts, self._style = screen, status, drafts, style
        self._flow = Flow(screen.width)
        self._empty = True

    def note(self, event: Event) -> None:
        self._status.note(event)
        self._drafts.note(event)

    def show(self, chunks: Sequence[TextChunk]) -> list[Row]:
        self._empty = self._empty and not any(chunk.text for chunk in chunks)
        return [row for chunk in chunks for row in self._flow.add(chunk.text, self._style(chunk))]

    def live(self, room: int) -> list[Row]:
        others = clipped(self._status.alternatives(0), self._screen.width, Style(dim=True))
        status = [*([others] if others else []), *self._status.rows()]
        text = self._drafts.behind(self._flow, 0, room - len(status))
        return status[:room] if self._empty and status and len(text) == 1 and not text[0] else [*text, *status][:room]

    def fit(self) -> list[Row]:
        return self._flow.fit(self._screen.width)

    def end(self, result: Result | None) -> list[Row]:
        return [self._flow.end(), *self._status.pace()]


class _Answers:
    """Several texts, each in a panel, which is printed for good when the text is complete."""

    def __init__(
        self,
        screen: Screen,
        status: Status,
        drafts: Drafts,
        style: Callable[[TextChunk], Style | None],
        names: Sequence[str],
    ) -> None:
        self._screen, self._status, self._drafts, self._style, self._names = screen, status, drafts, style, names
        self._panes = {row: Pane(screen.width - BORDERS) for row in range(len(names))}

    def note(self, event: Event) -> None:
        self._status.note(event)
        self._drafts.note(event)

    def show(self, chunks: Sequence[TextChunk]) -> list[Row]:
        finished: list[Row] = []
        for chunk in chunks:
            pane = self._panes[chunk.row]
            pane.add(chunk.text, self._style(chunk))
            if chunk.finish is not None:
                finished += self._screen.boxed(pane.rows, self._names[chunk.row], chunk.finish.reason)
                del self._panes[chunk.row]
        return finished

    def live(self, room: int) -> list[Row]:
        status = self._status.rows()
        shares = shared(len(self._panes), room - len(status), FRAME)
        rows: list[Row] = []
        for share, (number, pane) in zip(shares, self._panes.items(), strict=False):
            end = self._drafts.behind(pane.flow, number, share)
            rows += self._screen.boxed(pane.last(share, end), self._names[number], self._status.alternatives(number))
        return [*rows, *unseen(len(self._panes) - len(shares)), *status][:room]

    def fit(self) -> list[Row]:
        for pane in self._panes.values():
            pane.fit(self._screen.width - BORDERS)
        return []

    def end(self, result: Result | None) -> list[Row]:
        return self._status.pace()


def probability_style(chunk: TextChunk) -> Style | None:
    """The colour of how probable a piece of text was; None where that isn't known."""
    if not chunk.logprobs or any(map(math.isnan, chunk.logprobs)):
        return None
    least = math.exp(min(chunk.logprobs))
    return next(style for bound, style in _COLOURS if least >= bound)


def _no_style(chunk: TextChunk) -> None:
    return None
