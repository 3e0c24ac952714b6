"""What the sinks for terminals have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from unspool.errors import ArgumentError
from unspool.records import Event, Finish, FinishReason, Opening, Result, TextChunk
from unspool.sinks.base import Sink
from unspool.sinks.rows import Row
from unspool.sinks.screen import ConsoleFile, Screen, is_live
from unspool.sinks.text import TextSink
from unspool.text import TextStream

__all__ = ["FRAME", "LiveSink", "View", "row_names", "shared", "unseen"]

FRAME = 2
"""The rows that a panel has besides what is in it."""


class View(Protocol):
    """How a run looks: the rows that are final, and those below them that may still change."""

    def note(self, event: Event) -> None:
        """Takes an event."""

    def show(self, chunks: Sequence[TextChunk]) -> list[Row]:
        """Takes the text that the event made certain; gives the rows that are final now."""

    def live(self, room: int) -> list[Row]:
        """The rows that may still change, at most `room` of them."""

    def fit(self) -> list[Row]:
        """Goes on with another width of the screen; gives the rows that are final now."""

    def end(self, result: Result | None) -> list[Row]:
        """The last rows, which are final."""


class LiveSink:
    """Shows a run on a terminal; where there is none, writes plain text, as `TextSink` does.

    Args:
        console: Where to draw; by default what `sys.stdout` is when the stream begins.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        skip_special_tokens: Whether special tokens are left out.
    """

    def __init__(
        self, console: Console | None = None, *, tokenizer: Any = None, skip_special_tokens: bool = True
    ) -> None:
        self.console, self._tokenizer, self._skip_special = console, tokenizer, skip_special_tokens
        self._sink: Sink | None = None

    def view(self, opening: Opening, text: TextStream, tokenizer: Any, screen: Screen) -> View:
        """How this sink shows a run."""
        raise NotImplementedError

    def open(self, opening: Opening) -> None:
        """Looks whether there is a terminal.

        Raises:
            ArgumentError: There is no tokenizer.
        """
        tokenizer = self._tokenizer if self._tokenizer is not None else opening.tokenizer
        if tokenizer is None:
            name = type(self).__name__
            raise ArgumentError(f"{name} needs the model's tokenizer; pass it as `tokenizer=` to it or to the call.")
        console = self.console if self.console is not None else Console()
        if is_live(console):
            screen = Screen(console)
            text = TextStream(opening, tokenizer, skip_special_tokens=self._skip_special)
            self._sink = _OnScreen(screen, self.view(opening, text, tokenizer, screen), text)
        else:
            file: Any = ConsoleFile(console)
            self._sink = TextSink(file, tokenizer=tokenizer, skip_special_tokens=self._skip_special)
        self._sink.open(opening)

    def take(self, event: Event) -> None:
        """Shows what is new."""
        assert self._sink is not None  # `open` came first
        self._sink.take(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Shows the rest, and leaves the terminal as it was."""
        if self._sink is not None:
            self._sink.close(result, error)


class _OnScreen:
    """Draws a view of a run on a screen."""

    def __init__(self, screen: Screen, view: View, text: TextStream) -> None:
        self._screen, self._view, self._text = screen, view, text
        self._width = screen.width

    def open(self, opening: Opening) -> None:
        """Nothing: what there is to see comes with the events."""

    def take(self, event: Event) -> None:
        """Draws the view anew."""
        finished = self._fit()
        self._view.note(event)
        finished += self._view.show(self._text.take(event))
        self._screen.update(finished, self._view.live(self._screen.room))

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Leaves on the screen what is final, and nothing else."""
        finished = self._fit()
        if result is not None:
            finished += self._view.show(self._text.rest(result))
        finishes = None if result is None else result.finishes
        finished += self._view.show(self._text.finish(finishes, Finish(FinishReason.ERROR, error)))
        self._screen.close([*finished, *self._view.end(result)])

    def _fit(self) -> list[Row]:
        if self._screen.width == self._width:
            return []
        self._width = self._screen.width
        return self._view.fit()


def row_names(opening: Opening, text: TextStream) -> list[str]:
    """What to call each row of a run that has several."""
    prompts, rows = opening.rows // opening.rows_per_prompt, len(text.rows)
    samples = rows // prompts
    names = (
        [f"prompt {row // samples}"] * (prompts > 1) + [f"sample {row % samples}"] * (samples > 1)
        for row in range(rows)
    )
    return [", ".join(name) for name in names]


def shared(count: int, room: int, frame: int = 0) -> list[int]:
    """How rows of the screen are shared among things of which each has a frame: the rows of each that is shown.

    If not all can be shown, one row is left to say so.
    """
    shown = min(count, max(1, room // (frame + 1)))
    if shown < count:
        room -= 1
        shown = max(1, room // (frame + 1))
    return [max(1, room // shown - frame)] * shown if shown else []


def unseen(count: int) -> list[Row]:
    """A row that tells how many things there is no room for; none if there is."""
    return [[Segment(f"… and {count} more", Style(dim=True))]] if count > 0 else []
