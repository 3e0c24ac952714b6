"""A terminal for tests: what has scrolled off, what is on the screen, and the cursor."""

from __future__ import annotations

import io

import pyte
from rich.console import Console


class Terminal(io.StringIO):
    """A file that shows what is written to it as a terminal would."""

    def __init__(self, width: int = 80, height: int = 24, **settings) -> None:
        super().__init__()
        self.screen = pyte.HistoryScreen(width, height, history=100_000)
        self.screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.screen)
        self.console = Console(
            file=self, force_terminal=True, width=width, height=height, legacy_windows=False, _environ={}, **settings
        )

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return super().write(text)

    def resize(self, width: int, height: int) -> None:
        """Makes the terminal another size, as `xterm` does: rows stay rows."""
        self.screen.resize(height, width)
        self.console.size = (width, height)

    @property
    def scrolled(self) -> list[str]:
        """The rows that have scrolled off."""
        return [self._text(row) for row in self.screen.history.top]

    @property
    def shown(self) -> list[str]:
        """The rows of the screen, down to the last one that isn't empty."""
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def rows(self) -> list[str]:
        """All of them."""
        return self.scrolled + self.shown

    @property
    def cursor_is_hidden(self) -> bool:
        return self.screen.cursor.hidden

    def _text(self, row) -> str:
        return "".join(row[column].data for column in range(self.screen.columns)).rstrip()
