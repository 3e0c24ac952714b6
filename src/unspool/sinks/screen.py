"""A terminal whose last rows are drawn anew while what is above them stays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.control import Control
from rich.panel import Panel
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from unspool.sinks.rows import Row, visible

__all__ = ["BORDERS", "ConsoleFile", "Screen", "is_live"]

BORDERS = 4
"""The columns that a panel takes away from what is in it."""


def is_live(console: Console) -> bool:
    """Whether what was written to a console can be drawn over, and our signs can be written to it."""
    return console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only


class Screen:
    """A console to which rows are printed for good, with some rows below them that may still change.

    The rows that may change are never as tall as the screen, so that all of them can be reached and drawn over.
    Nothing is held between two updates but the cursor, which is hidden until `close`.

    Args:
        console: A console on a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: list[Row] = []
        self._begun = False
        self._width = console.width

    @property
    def width(self) -> int:
        """The width of a row, in columns."""
        return self._console.width

    @property
    def room(self) -> int:
        """How many rows may be live."""
        return max(1, self._console.height - 1)

    def drawn(self, renderable: RenderableType, width: int | None = None) -> list[Row]:
        """The rows that something of rich takes, in the width of the screen or another."""
        options = self._console.options.update_width(self.width if width is None else width)
        return self._console.render_lines(renderable, options, pad=False)

    def boxed(self, rows: Sequence[Row], title: str, subtitle: str = "", style: str = "dim") -> list[Row]:
        """Some rows in a panel. They may be `width - BORDERS` wide."""
        inside = Segments([*_joined(rows)])
        names = (Text(visible(name), style) for name in (title, subtitle))
        top, bottom = (name if name else None for name in names)
        return self.drawn(Panel(inside, title=top, subtitle=bottom, title_align="left", border_style=style))

    def update(self, finished: Sequence[Row], live: Sequence[Row]) -> None:
        """Prints some rows for good, and draws others below them in the place of the last ones.

        Args:
            finished: The rows to print, which stay.
            live: The rows that may change; if there are too many, the last ones are shown.
        """
        shown = list(live)[-self.room :]
        if self._begun and not finished and shown == self._live and self.width == self._width:
            return
        begin = [] if self._begun else [_control(ControlType.HIDE_CURSOR)]
        self._begun = True
        self._print([*begin, *self._erasing(), *_lines(finished), *_joined(shown)])
        self._live, self._width = shown, self.width

    def close(self, finished: Sequence[Row] = ()) -> None:
        """Puts some rows in the place of those that could change, and gives the cursor back."""
        end = [_control(ControlType.SHOW_CURSOR)] if self._begun else []
        try:
            self._print([*self._erasing(), *_lines(finished), *end])
        finally:
            self._live, self._begun = [], False

    def _erasing(self) -> Iterable[Segment]:
        """Goes to the beginning of the live rows, erasing them."""
        if not self._live:
            return
        yield _control(ControlType.CARRIAGE_RETURN)
        yield _control((ControlType.ERASE_IN_LINE, 2))
        for _ in range(self._height() - 1):
            yield _control((ControlType.CURSOR_UP, 1))
            yield _control((ControlType.ERASE_IN_LINE, 2))

    def _height(self) -> int:
        """How many rows of the terminal the live rows take now: one each, unless it has become narrower since."""
        width = max(1, self.width)
        if width >= self._width:
            return len(self._live)
        cells = (sum(segment.cell_length for segment in row) for row in self._live)
        return sum(max(1, math.ceil(count / width)) for count in cells)

    def _print(self, segments: Iterable[Segment]) -> None:
        if segments := list(segments):
            self._console.print(Segments(segments), end="", soft_wrap=True)


class ConsoleFile:
    """A console as a file that text is written to, as it is.

    Args:
        console: The console.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        """Writes text; none of it is markup."""
        self._console.print(Segments([Segment(text)]), end="", soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Nothing: consoles write at once."""


def _control(code: ControlType | tuple[ControlType, int]) -> Segment:
    return Control(code).segment


def _lines(rows: Iterable[Row]) -> Iterable[Segment]:
    for row in rows:
        yield from row
        yield Segment.line()


def _joined(rows: Sequence[Row]) -> Iterable[Segment]:
    for number, row in enumerate(rows):
        if number:
            yield Segment.line()
        yield from row
