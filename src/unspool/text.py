"""From steps to text, with what it was made from.

Text that may yet become a stop string is held until that is known, and a stop string is never shown. A piece of
text, its ids and its log-probabilities stay together: what is held is held by whole tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unspool.detokenize import detokenizer_for
from unspool.errors import ArgumentError
from unspool.events import Change, Retract, Segment
from unspool.records import Event, Finish, FinishReason, Opening, Result, Step, TextChunk
from unspool.row_text import RowText, StopStrings

__all__ = ["Opened", "TextReader", "TextStream"]


class Opened(Protocol):
    """A run, as far as its text depends on it."""

    @property
    def result(self) -> Result | None:
        """What it came to; None while it goes on."""

    def opening(self) -> Opening | None:
        """What it began with, once that is known."""


class TextStream:
    """The text of all rows of a run.

    Under beams, a row is a sequence that will be returned. Its text comes as far as all beams of its prompt agree,
    and the rest at the end; log-probabilities are then not known for every token, and NaN where they aren't.

    Args:
        opening: What the run began with.
        tokenizer: The model's tokenizer.
        skip_special_tokens: Whether special tokens have no text.
        logprobs: Whether log-probabilities are computed; if not, they are NaN.

    Raises:
        ArgumentError: The tokenizer is none.
    """

    def __init__(
        self, opening: Opening, tokenizer: Any, *, skip_special_tokens: bool = True, logprobs: bool = True
    ) -> None:
        self._logprobs = logprobs
        self._make = detokenizer_for(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stops, self._silent = _strings(opening.config), opening.silent
        self._revises = opening.revises
        count = opening.rows_per_prompt
        self._start = opening.prompt_ids.shape[1]
        self._prompts = opening.rows // count
        self._by_beams = (opening.config.num_beams or 1) > 1
        if self._by_beams:
            count = opening.config.num_return_sequences or 1
        self._count = count
        self.rows = self._anew()
        self._agreed = [0] * self._prompts
        self._log: list[_Entry] = [_Entry([], list(self._agreed))]
        self._shown = [""] * len(self.rows)
        if opening.earlier is not None and not self._by_beams:
            self._take_up(opening.earlier)

    def _take_up(self, earlier: Sequence[tuple[int, ...] | None]) -> None:
        """Reads, without a word, what rows took before."""
        for row, ids in enumerate(earlier):
            acts = [_Act(row, token) for token in ids or ()]
            self._do([*acts, _Act(row, finish=Finish(FinishReason.STOPPED))] if ids is None else acts)

    def _anew(self) -> list[RowText]:
        rows = ((row, row // self._count, row % self._count) for row in range(self._prompts * self._count))
        return [RowText(row, self._make(), self._stops, self._silent) for row in rows]

    def begin(self, row: int, ids: Sequence[int]) -> str:
        """Reads the prompt of a row, whose text the row's continues: the text of it that is certain."""
        self._log[0].acts.append(_Act(row, prompt=tuple(ids)))
        return self.rows[row].begin(ids)

    def take(self, event: Event) -> list[TextChunk]:
        """The chunks that an event makes certain, or void."""
        if isinstance(event, Retract):
            return [] if self._by_beams and self._revises else self._go_back(event.count, event.rows)
        if isinstance(event, Change):
            self._do([_Act(row, stops=_strings(event.config)) for row in event.rows or range(len(self.rows))])
        agreed = list(self._agreed)
        if isinstance(event, Segment) and self._by_beams:
            acts = [_Act(event.row, token, float("nan")) for token in event.ids]
        elif isinstance(event, Step) and not (self._by_beams and self._revises):
            acts = self._acts(event) if event.beams is None else self._acts_of_beams(event)
        else:
            return []
        self._log.append(_Entry([], agreed))
        chunks = self._do(acts)
        for chunk in chunks:
            self._shown[chunk.row] += chunk.text
        return chunks

    def _acts(self, step: Step) -> list[_Act]:
        acts = []
        logprobs = step.logprobs.tolist() if self._logprobs else [float("nan")] * len(self.rows)
        for row, (live, token, logprob) in enumerate(
            zip(step.live.tolist(), step.tokens.tolist(), logprobs, strict=True)
        ):
            if live:
                acts.append(_Act(row, token, logprob))
            if row in step.ended:
                acts.append(_Act(row, finish=step.ended[row]))
        return acts

    def _acts_of_beams(self, step: Step) -> list[_Act]:
        assert step.beams is not None
        acts: list[_Act] = []
        candidates = step.beams.candidates() if step.ended else None
        for prompt, agreed in enumerate(step.beams.agreed):
            for sample in range(self._count):
                row = prompt * self._count + sample
                ids = agreed if candidates is None else candidates[prompt][sample]
                new = ids[self._start + self._agreed[prompt] :]
                acts.extend(_Act(row, token, float("nan")) for token in new)
                if row in step.ended:
                    acts.append(_Act(row, finish=step.ended[row]))
            self._agreed[prompt] = max(self._agreed[prompt], len(agreed) - self._start)
        return acts

    def _do(self, acts: Sequence[_Act]) -> list[TextChunk]:
        """Has rows take tokens, and end; keeps in mind that they did."""
        self._log[-1].acts.extend(acts)
        chunks = (act.on(self.rows[act.row]) for act in acts)
        return [chunk for chunk in chunks if chunk is not None]

    def _go_back(self, count: int, rows: Sequence[int] | None = None) -> list[TextChunk]:
        """Undoes some steps, for all rows or some: for each row whose text changes, a chunk that says how."""
        count = min(count, len(self._log) - 1)  # of those before, this text never heard
        if not count:
            return []
        if rows is None:
            self._agreed = list(self._log[-count].agreed)
            del self._log[-count:]
        else:
            for entry in self._log[-count:]:
                entry.acts[:] = [act for act in entry.acts if act.row not in rows]
        kept = [entry.acts for entry in self._log]
        self.rows, before = self._anew(), self._shown
        self._shown = [""] * len(self.rows)
        for number, acts in enumerate(kept):
            for act in acts:
                chunk = act.on(self.rows[act.row])
                if chunk is not None and number:  # the first holds what came before the first step
                    self._shown[act.row] += chunk.text
        chunks = []
        for text, old, new in zip(self.rows, before, self._shown, strict=True):
            same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            if same < max(len(old), len(new)):
                chunks.append(TextChunk(*text.place, new[same:], (), (), back=len(old) - same))
        return chunks

    def finish(self, finishes: Sequence[Finish] | None, otherwise: Finish) -> list[TextChunk]:
        """The last chunks of the rows that have not had theirs."""
        endings = finishes if finishes is not None else [otherwise] * len(self.rows)
        last = (text.end(finish) for text, finish in zip(self.rows, endings, strict=True))
        return [chunk for chunk in last if chunk is not None]

    def rest(self, result: Result) -> list[TextChunk]:
        """The chunks of what a result holds beyond its steps: of beams that were left before they agreed."""
        if result.beam_indices is None:
            return []
        lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
        chunks: list[TextChunk | None] = []
        for row, (ids, length) in enumerate(zip(result.tokens.tolist(), lengths, strict=True)):
            new = ids[self._agreed[row // self._count] : length]
            chunks.extend(self.rows[row].push(token, float("nan")) for token in new)
        return [chunk for chunk in chunks if chunk is not None]


@dataclass(frozen=True, slots=True)
class _Act:
    """What a row's text was given: a token, an end, a prompt, or other stop strings."""

    row: int
    token: int = -1
    logprob: float = 0.0
    finish: Finish | None = None
    prompt: tuple[int, ...] | None = None
    stops: StopStrings | None = None

    def on(self, text: RowText) -> TextChunk | None:
        """Gives it to a text; the chunk that this makes certain."""
        if self.prompt is not None:
            text.begin(self.prompt)
        elif self.stops is not None:
            text.watch(self.stops)
        elif self.finish is not None:
            return text.end(self.finish)
        else:
            return text.push(self.token, self.logprob)
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one step gave the rows, and how far beams had agreed before it."""

    acts: list[_Act]
    agreed: list[int]


def _strings(config: Any) -> StopStrings:
    """The stop strings of a config."""
    stops = config.stop_strings or ()
    return StopStrings((stops,) if isinstance(stops, str) else tuple(stops))


class TextReader:
    """Reads the text of a run from its events.

    If the run fails, what was held comes first, then the error.

    Args:
        run: The run: `opening()` gives what it began with once the first event has come, `result` what it came to.
        tokenizer: The model's tokenizer.
        skip_special_tokens: Whether special tokens have no text.

    Raises:
        ArgumentError: There is no tokenizer, or it is none.
    """

    def __init__(self, run: Opened, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        if tokenizer is None:
            raise ArgumentError("Text needs the model's tokenizer; pass it to text(), or to the call as `tokenizer=`.")
        detokenizer_for(tokenizer)  # a wrong one raises here, not in mid-stream
        self._run, self._tokenizer, self._skip_special = run, tokenizer, skip_special_tokens
        self._text: TextStream | None = None

    def take(self, event: Event) -> list[TextChunk]:
        """The chunks that an event makes certain."""
        opening = self._run.opening()
        if self._text is None and opening is not None:
            self._text = TextStream(opening, self._tokenizer, skip_special_tokens=self._skip_special)
        return [] if self._text is None else self._text.take(event)

    def finish(self) -> list[TextChunk]:
        """The last chunks of the rows that have not had theirs."""
        result = self._run.result
        finishes = None if result is None else result.finishes
        return [] if self._text is None else self._text.finish(finishes, Finish(FinishReason.STOPPED))

    def fail(self, error: BaseException) -> list[TextChunk]:
        """What was held."""
        return [] if self._text is None else self._text.finish(None, Finish(FinishReason.ERROR, error))
