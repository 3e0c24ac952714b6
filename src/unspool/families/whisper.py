"""Whisper: sound is read window by window, and what was heard may be heard anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unspool import bridge
from unspool.events import Phase, Retract, Segment
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.families.listener import Listener
from unspool.records import Event, Finish, Opening, Result, Step

if TYPE_CHECKING:
    from unspool.plan import Request

__all__ = ["SpeechStep", "Whisper"]


@dataclass(frozen=True, slots=True)
class SpeechStep(Step):
    """A step of a model that writes down speech.

    Rows are those of the caller's batch; a row whose sound is over is not live.

    Attributes:
        window: The number of the window of sound, from 0.
        temperature: The temperature of this attempt at the window; 0 for greedy search and beams.
        times: For each row the latest time that the model has marked, in seconds from the start of its sound; None
            before the first mark. Empty under beams.
        segments: For each row the number of its segment, from 0; void ones don't count. Empty under beams.
        heard: The rows that `outputs` holds, in this order.
        window_ended: The rows whose window ends here, and how.
    """

    window: int = 0
    temperature: float = 0.0
    times: tuple[float | None, ...] = ()
    segments: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()
    window_ended: Mapping[int, Finish] = field(default_factory=dict)


class Whisper(EncoderDecoder):
    """Whisper's own walk over windows, with its thresholds and fallbacks (Radford et al., 2022, arXiv:2212.04356)."""

    name: ClassVar[str] = "whisper"
    step: ClassVar[type[Step]] = SpeechStep
    around_own_loop: ClassVar[bool] = True

    def listener(self, request: Request) -> Listener:
        """What hears windows, attempts and segments."""
        return _Windows(request)


class _Windows(Listener):
    """Makes one stream of the attempts at all windows."""

    taps: ClassVar[tuple[str, ...]] = bridge.WHISPER

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        config = request.generation_config or request.model.generation_config
        last = getattr(config, "no_timestamps_token_id", None)
        self._first_mark = None if last is None else last + 1
        self._precision = request.kwargs.get("time_precision", 0.02)
        self._window = self._told = -1
        self._rows: list[int] = []
        self._again: list[bool] = []
        self._batch, self._beams, self._temperature = 0, 1, 0.0
        self._speech: dict[int, _Speech] = {}

    def before(self, name: str, given: Mapping[str, Any]) -> Iterable[Event]:
        """A window begins."""
        if name == bridge.WHISPER_WINDOW:
            self._begin_window(given)
        return ()

    def _begin_window(self, given: Mapping[str, Any]) -> None:
        self._window, self._rows, self._again = self._window + 1, list(given["batch_idx_map"]), []
        self._batch = len(given["seek"])
        encoder = self.request.model.model.encoder
        frames = encoder.conv1.stride[0] * encoder.conv2.stride[0]
        for row in self._rows:
            speech = self._speech.setdefault(row, _Speech(self._first_mark, self._precision))
            speech.begin_window(float(given["seek"][row]) * self._precision / frames)

    def after(self, name: str, given: Mapping[str, Any], made: Any) -> Iterable[Event]:
        """An attempt has been judged, a window is over, or its segments are known."""
        if name == bridge.WHISPER_JUDGED:
            self._again.append(made[0])
        elif name == bridge.WHISPER_WINDOW:
            for row, skipped in zip(given["batch_idx_map"], made[2], strict=True):
                if skipped:
                    yield from self._void(row, 0)
        elif name == bridge.WHISPER_SEGMENTS:
            yield from self._settle(given["prev_idx"], given["seek_sequence"], made[0])

    def begins(self, opening: Opening) -> Iterable[Event]:
        """An attempt at a window begins; one before it at the same rows is void."""
        config = opening.config
        if self._told < self._window:
            self._told = self._window
            yield Phase("window", self._window)
        self._temperature = float(config.temperature or 1.0) if config.do_sample else 0.0
        self._beams = opening.rows_per_prompt
        if self._again:
            yield self._retry([row for row, again in zip(self._rows, self._again, strict=False) if again])
        for row in self._rows:
            self._speech[row].begin_attempt(self._temperature)

    def _retry(self, rows: list[int]) -> Retract:
        """Voids an attempt at some rows, which are heard anew."""
        first = min(self._speech[row].steps[0] for row in rows)
        count, whole = self.index - first, len(rows) == len(self._rows)
        if whole:
            self.index = first
        self._rows, self._again = rows, []
        return Retract(count, first, None if whole else tuple(rows))

    def opening(self, opening: Opening) -> Opening:
        """Says that steps may become void, and which ids mark times."""
        vocab: int = self.request.model.config.vocab_size
        marks = range(vocab if self._first_mark is None else self._first_mark, vocab)
        return replace(opening, revises=True, silent=marks)

    def shown(self, event: Event) -> Event:
        """A step with the rows of the whole batch."""
        if not isinstance(event, Step):
            return event
        given: dict[str, Any] = {name: getattr(event, name) for name in Step.__dataclass_fields__}
        given |= {"index": self.index, "ended": {}}
        ended = {self._rows[row]: end for row, end in event.ended.items() if row < len(self._rows)}
        for row, end in ended.items():
            self._speech[row].finish = end
        times: tuple[float | None, ...] = ()
        numbers: tuple[int, ...] = ()
        if event.beams is None:
            for place, row in enumerate(self._rows):
                if event.live[place]:
                    self._speech[row].take(int(event.tokens[place]), self.index)
            speeches = [self._speech.get(row) for row in range(self._batch)]
            times = tuple(None if speech is None else speech.time for speech in speeches)
            numbers = tuple(0 if speech is None else speech.segment for speech in speeches)
            given |= self._of_all(event)
        else:
            for row in self._rows:
                self._speech[row].steps.append(self.index)
        self.index += 1
        where: dict[str, Any] = {"times": times, "segments": numbers, "heard": tuple(self._rows), "window_ended": ended}
        return SpeechStep(**given, **where, window=self._window, temperature=self._temperature)

    def _of_all(self, step: Step) -> dict[str, torch.Tensor]:
        """The tensors of a step with a row for each of the batch."""
        if self._rows == list(range(self._batch)):
            return {}
        names = ("tokens", "live", "logits", "scores")
        made = {}
        for name in names:
            held = getattr(step, name)[: len(self._rows)]
            whole = held.new_zeros((self._batch, *held.shape[1:]))
            made[name] = whole.index_copy(0, torch.tensor(self._rows, device=held.device), held)
        return made

    def _settle(self, row: int, ids: torch.Tensor, segments: list[dict[str, Any]]) -> Iterable[Event]:
        """Tells the segments of a window, and voids what was begun after the last of them: it is heard anew."""
        kept = sum(len(segment["tokens"]) for segment in segments)
        if kept < len(ids):
            yield from self._void(row, kept)
        self._speech[row].settle(len(segments))
        for segment in segments:
            words = tuple(segment["tokens"].tolist())
            start, end = float(segment["start"]), float(segment["end"])
            yield Segment(row, start, end, words, self._window, self._speech[row].temperature)

    def _void(self, row: int, kept: int) -> Iterable[Event]:
        """Takes back what a row took in its window, but for its first few tokens."""
        steps = self._speech[row].steps[kept:]
        if steps and self._beams == 1:
            yield Retract(self.index - steps[0], steps[0], (row,))

    def result(self, last: Result, otherwise: Finish) -> Result:
        """With every row of the batch."""
        finishes = tuple(
            self._speech[row].finish or otherwise if row in self._speech else otherwise
            for row in range(max(self._batch, 1))
        )
        return replace(last, steps=self.index, finishes=finishes)


class _Speech:
    """What one row has said in the window at hand.

    Args:
        first_mark: The id of the first time mark; the others follow.
        precision: Seconds from one mark to the next.
    """

    def __init__(self, first_mark: int | None, precision: float) -> None:
        self._first_mark, self._precision = first_mark, precision
        self.finish: Finish | None = None
        self.time: float | None = None
        self._settled = 0

    def begin_window(self, offset: float) -> None:
        """The sound from `offset` seconds on is heard."""
        self._offset = offset

    def begin_attempt(self, temperature: float) -> None:
        """It is heard from the beginning."""
        self.temperature = temperature
        self.steps: list[int] = []
        self.segment, self._marked, self._said = self._settled, False, False

    def take(self, token: int, step: int) -> None:
        """A token more."""
        self.steps.append(step)
        mark = self._first_mark is not None and token >= self._first_mark
        if mark:
            assert self._first_mark is not None  # it was compared with
            self.time = self._offset + (token - self._first_mark) * self._precision
        if mark and self._marked and self._said:
            self.segment += 1
        self._said |= not mark
        self._marked = mark

    def settle(self, segments: int) -> None:
        """So many segments of the window are certain."""
        self._settled += segments
