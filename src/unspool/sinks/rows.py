"""From text that grows to rows of a screen, none wider than it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import regex
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

__all__ = ["Flow", "Pane", "Row", "clipped", "plain", "visible"]

Row = list[Segment]
"""A row of the screen, without the line break."""

_TAB = 8  # columns
_LONGEST = 64  # characters that are put into one place at most, however many accents are heaped on it
_CLUSTER = regex.compile(r"\X")
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
_ESCAPED = (*range(0x80, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = _PICTURES | {code: f"\\u{code:04x}" for code in _ESCAPED}


def visible(text: str) -> str:
    r"""The text with characters that steer a terminal replaced by such as show them; newlines and tabs stay.

    Those are the control characters, what turns the direction of writing around, and halves of surrogate pairs.

    Example:
        >>> visible("\x1b[1mbold\r\n")
        '␛[1mbold␍\n'
    """
    if text.isprintable():
        return text
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) == "Cs" else char for char in text.translate(_VISIBLE)
    )


class _Item(NamedTuple):
    """What stands in one place: a character with all that belongs to it."""

    text: str
    style: Style | None
    cells: int
    space: bool = False


class Flow:
    """Breaks text that grows into rows. A row that is complete never changes again; the last one still may.

    Rows break at spaces and beside wide characters, and within words that are longer than a row. A character and what
    belongs to it (accents, joined emoji, flags) stay together; where terminals disagree about its width, there is room
    for the widest.

    Args:
        width: The width of a row, in columns of the screen.

    Example:
        >>> flow = Flow(10)
        >>> [plain(row) for row in flow.add("All that is gold")], plain(flow.open)
        (['All that '], 'is gold')
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._items: list[_Item] = []

    @property
    def open(self) -> Row:
        """The last row."""
        return _row(self._items)

    def add(self, text: str, style: Style | None = None) -> list[Row]:
        """Adds text; gives the rows that are complete now."""
        done: list[Row] = []
        for number, line in enumerate(visible(text).split("\n")):
            if number:
                done.append(self.end())
            for cluster, its_style in self._clusters(line, style):
                done += self._place(cluster, its_style)
        return done

    def end(self) -> Row:
        """Ends the last row, as a line break does, and gives it."""
        row, self._items = self.open, []
        return row

    def fit(self, width: int) -> list[Row]:
        """Goes on with another width; gives the rows that are complete now."""
        items, self._items, self._width = self._items, [], max(1, width)
        return [row for item in items for row in self._place(item.text, item.style)]

    def _clusters(self, line: str, style: Style | None) -> Iterator[tuple[str, Style | None]]:
        """What goes into one place each. What belongs to the character before is put into its place."""
        before = self._items[-1] if line and self._items else None
        if before is None or before.space or len(before.text) >= _LONGEST:
            yield from ((part, style) for part in _split(line))
            return
        first, *others = _split(before.text + line)
        if first != before.text:
            self._items.pop()
            yield first, before.style
        yield from ((part, style) for part in others)

    def _place(self, text: str, style: Style | None) -> list[Row]:
        column = sum(item.cells for item in self._items)
        if not text or text.isspace():
            self._place_space(text, style, column)
            return []
        done, cells = [], _cells(text)
        if column and column + cells > self._width:
            at = len(self._items) if cells > 1 else self._break()
            done.append(_row(self._items[:at]))
            self._items = self._items[at:]
            if sum(item.cells for item in self._items) + cells > self._width:
                done.append(self.end())
        self._items.append(_Item(text, style, cells))
        return done

    def _place_space(self, text: str, style: Style | None, column: int) -> None:
        """Spaces at the end of a row that is full hang over it, unseen."""
        cells = min(_TAB - column % _TAB if text == "\t" else _cells(text), self._width - column)
        if cells > 0 or not (self._items and self._items[-1].space):
            shown = " " * cells if text == "\t" or cells < _cells(text) else text
            self._items.append(_Item(shown, style, max(0, cells), space=True))

    def _break(self) -> int:
        """Before which item the row can be broken: after the last space or wide character, else at its end."""
        for at in range(len(self._items), 0, -1):
            if self._items[at - 1].space or self._items[at - 1].cells > 1:
                return at
        return len(self._items)


class Pane:
    """All rows of a text that grows, for where it is shown in part, or later.

    Args:
        width: The width of a row, in columns of the screen.
    """

    def __init__(self, width: int) -> None:
        self._pieces: list[tuple[str, Style | None]] = []
        self._flow, self._done = Flow(width), list[Row]()

    @property
    def rows(self) -> list[Row]:
        """The rows so far; at least one."""
        return [*self._done, self._flow.open]

    @property
    def flow(self) -> Flow:
        """What the text flows through: its open row is the last."""
        return self._flow

    def last(self, count: int, end: Sequence[Row] = ()) -> list[Row]:
        """The last rows, at most `count`, with others in the place of the open one if there are any."""
        rows = list(end) or [self._flow.open]
        return [*self._done[-(count - len(rows)) :], *rows] if count > len(rows) else rows[-count:]

    def add(self, text: str, style: Style | None = None) -> None:
        """Adds text."""
        if text:
            self._pieces.append((text, style))
            self._done += self._flow.add(text, style)

    def fit(self, width: int) -> None:
        """Breaks the text anew, for another width."""
        self._flow = Flow(width)
        self._done = [row for text, style in self._pieces for row in self._flow.add(text, style)]


def plain(row: Iterable[Segment]) -> str:
    """The text of a row."""
    return "".join(segment.text for segment in row)


def clipped(text: str, width: int, style: Style | None = None, *, middle: bool = False) -> Row:
    """As much of a text as fits on one row, with an ellipsis for what doesn't; line breaks and tabs are shown as signs.

    Args:
        text: The text.
        width: The width of the row, in columns of the screen.
        style: How it is drawn.
        middle: Whether the middle is left out, rather than the end.
    """
    parts = _split(visible(text).replace("\n", "⏎").replace("\t", "⇥"))
    if sum(map(_cells, parts)) > width:
        if width < 1:
            return []
        after = (width - 1) // 2 if middle else 0
        begin, end = _fitting(parts, width - 1 - after), _fitting(parts[::-1], after)[::-1]
        parts = [*begin, "…", *end]
    return [Segment("".join(parts), style)] if parts else []


def _fitting(parts: Iterable[str], width: int) -> list[str]:
    """The first of some parts, as many as fit."""
    kept: list[str] = []
    for part in parts:
        width -= _cells(part)
        if width < 0:
            break
        kept.append(part)
    return kept


def _split(text: str) -> list[str]:
    if text.isascii():
        return list(text)
    return [part[i : i + _LONGEST] for part in _CLUSTER.findall(text) for i in range(0, len(part), _LONGEST)]


def _cells(cluster: str) -> int:
    """The columns it takes: as one sign, or one by one, as terminals do that can't join; whichever is more."""
    if len(cluster) == 1:
        return cell_len(cluster)
    return max(cell_len(cluster), sum(map(cell_len, cluster)))


def _row(items: Iterable[_Item]) -> Row:
    """The items as segments, one for each run of the same style."""
    row: Row = []
    for item in items:
        if row and row[-1].style == item.style:
            row[-1] = Segment(row[-1].text + item.text, item.style)
        elif item.text:
            row.append(Segment(item.text, item.style))
    return row
