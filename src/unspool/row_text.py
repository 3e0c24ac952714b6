"""The text of one row: its ids, turned into text as it becomes certain."""

from __future__ import annotations

from collections.abc import Container, Sequence

from unspool.detokenize import Detokenizer
from unspool.records import Finish, FinishReason, TextChunk

__all__ = ["RowText", "StopStrings"]


class StopStrings:
    """Some strings that end a text.

    Args:
        strings: The strings; empty ones are ignored.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(string for string in strings if string)

    def first(self, text: str) -> tuple[int, str] | None:
        """Where the earliest stop string begins, and which it is; of several that begin there, the longest."""
        found = [(text.find(string), -len(string), string) for string in self.strings if string in text]
        return (min(found)[0], min(found)[2]) if found else None

    def held(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a stop string."""
        longest = 0
        for string in self.strings:
            for count in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:count]):
                    longest = count
                    break
        return longest


class RowText:
    """The text of one row.

    Args:
        row: The row, its prompt and its sample.
        detokenizer: Turns ids into text.
        stops: What ends the text.
        silent: The ids that have no text.
    """

    def __init__(
        self, row: tuple[int, int, int], detokenizer: Detokenizer, stops: StopStrings, silent: Container[int] = ()
    ) -> None:
        self._silent = silent
        self.place, self._detokenizer, self._stops = row, detokenizer, stops
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._texts: list[str] = []
        self.finished = False

    def begin(self, ids: Sequence[int]) -> str:
        """Reads a prompt, whose text the row's continues: the text of it that is certain."""
        return "".join(self._detokenizer.push(token) for token in ids)

    def watch(self, stops: StopStrings) -> None:
        """Ends at other strings from now on."""
        self._stops = stops

    def push(self, token: int, logprob: float) -> TextChunk | None:
        """Takes a token; gives a chunk if there is new text that can be shown."""
        if self.finished:
            return None
        self._ids.append(token)
        self._logprobs.append(logprob)
        self._texts.append("" if token in self._silent else self._detokenizer.push(token))
        if not self._texts[-1]:
            return None
        buffer = "".join(self._texts)
        stop = self._stops.first(buffer)
        if stop is not None:
            return self._end_at(buffer, *stop)
        return self._release(len(buffer) - self._stops.held(buffer))

    def end(self, finish: Finish) -> TextChunk | None:
        """Ends the row: gives its last chunk, with all that was held."""
        if self.finished:
            return None
        rest = self._detokenizer.flush()
        if rest and self._texts:
            self._texts[-1] += rest
        buffer = "".join(self._texts) if self._texts else rest
        stop = self._stops.first(buffer)
        if stop is not None:
            return self._end_at(buffer, *stop)
        return self._last(buffer, len(self._ids), finish)

    def _release(self, safe: int) -> TextChunk | None:
        """A chunk of the tokens whose text lies within the first `safe` characters, up to the last that has text."""
        count = position = 0
        for i, text in enumerate(self._texts):
            position += len(text)
            if position > safe:
                break
            if text:
                count = i + 1
        return self._chunk("".join(self._texts[:count]), count) if count else None

    def _end_at(self, buffer: str, position: int, stop: str) -> TextChunk:
        """The last chunk: the text before a stop string, and the tokens in which it lies."""
        count = shown = 0
        while count < len(self._texts) and shown < position:
            shown += len(self._texts[count])
            count += 1
        return self._last(buffer[:position], count, Finish(FinishReason.STOP_STRING, stop))

    def _last(self, text: str, count: int, finish: Finish) -> TextChunk:
        self.finished = True
        return self._chunk(text, count, finish)

    def _chunk(self, text: str, count: int, finish: Finish | None = None) -> TextChunk:
        ids, logprobs = tuple(self._ids[:count]), tuple(self._logprobs[:count])
        del self._ids[:count], self._logprobs[:count], self._texts[:count]
        row, prompt, sample = self.place
        return TextChunk(row, prompt, sample, text, ids, logprobs, finish)
