"""Shows a beam search on a terminal: what is certain, and what is still being weighed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.segment import Segment
from rich.style import Style

from unspool.detokenize import Detokenizer, detokenizer_for
from unspool.errors import ArgumentError
from unspool.records import Beams, Event, Opening, Result, Step, TextChunk
from unspool.sinks.live import FRAME, LiveSink, View, shared, unseen
from unspool.sinks.rows import Flow, Pane, Row, clipped
from unspool.sinks.screen import BORDERS, Screen
from unspool.sinks.status import Status
from unspool.text import TextStream

__all__ = ["BeamSink"]

_DIM, _FINISHED = Style(dim=True), Style(color="green")


class BeamSink(LiveSink):
    r"""Shows a beam search on a terminal.

    The text on which all beams agree is certain, and is printed for good. Below it, dimmed and drawn anew at each step,
    stands what each beam has from there on, with its cumulative log-probability; hypotheses that have finished are
    marked with ✓ and have the score that they will be ranked by. In the end only the text stays that is returned.

    Several prompts, or several sequences for one, have a panel for each prompt, which is printed for good at the end.

    Where the console is no terminal, plain text is written as `TextSink` does: as far as the beams agree, and the rest
    at the end.

    Args:
        console: Where to draw; by default what `sys.stdout` is when the stream begins.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        skip_special_tokens: Whether special tokens are left out.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> from unspool import generate_stream
        >>> console = Console(file=io.StringIO(), force_terminal=True, width=40, height=10)
        >>> sink = BeamSink(console, tokenizer=tiny_tokenizer())
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), num_beams=3, max_new_tokens=3).to(sink)
        >>> console.file.getvalue().endswith("\n\x1b[?25h")  # the text, and the cursor again
        True
    """

    def open(self, opening: Opening) -> None:
        """Looks whether there is a terminal.

        Raises:
            ArgumentError: There are no beams, or no tokenizer.
        """
        if (opening.config.num_beams or 1) == 1:
            raise ArgumentError("BeamSink shows a beam search, and num_beams is 1. TerminalSink would do.")
        super().open(opening)

    def view(self, opening: Opening, text: TextStream, tokenizer: Any, screen: Screen) -> View:
        """One text with its beams below, or panels."""
        make = detokenizer_for(tokenizer, skip_special_tokens=self._skip_special)
        prompts = opening.rows // opening.rows_per_prompt
        trunks = [Trunk(make(), prompt, opening.prompt_ids.shape[1]) for prompt in range(prompts)]
        if len(text.rows) == 1:
            return _Search(screen, trunks[0])
        return _Searches(screen, trunks, len(text.rows) // prompts)


class Branch(NamedTuple):
    """A running beam, or a hypothesis that has finished.

    Attributes:
        score: Its score.
        text: Its text from the point on where the branches part.
        finished: Whether it has finished.
    """

    score: float
    text: str
    finished: bool

    def row(self, width: int) -> Row:
        """The branch on a row of the screen."""
        mark = Segment("✓" if self.finished else " ", _FINISHED)
        begin = [mark, Segment(f"{self.score:7.2f} ", _DIM)]
        return [*begin, *clipped(self.text, width - sum(part.cell_length for part in begin), _DIM, middle=True)]


class Trunk:
    """The search for one prompt: what is certain, and the branches that grow from it.

    Args:
        detokenizer: Turns ids into text.
        prompt: The index of the prompt.
        start: How many ids it has.
    """

    def __init__(self, detokenizer: Detokenizer, prompt: int, start: int) -> None:
        self._detokenizer, self._prompt, self._count = detokenizer, prompt, start
        self._held = ""
        self._beams: Beams | None = None

    def grow(self, beams: Beams, agreed: Sequence[int]) -> None:
        """Takes the beams of a step, and the ids of the prompt's that are certain now."""
        self._held += "".join(map(self._detokenizer.push, agreed[self._count :]))
        self._count = max(self._count, len(agreed))
        self._beams = beams

    def printed(self, text: str) -> None:
        """Takes note that some of what is certain has been printed."""
        self._held = self._held[len(text) :]

    def branches(self) -> Iterator[Branch]:
        """The beams that run, then the hypotheses that have finished, each from what has been printed on."""
        beams, prompt = self._beams, self._prompt
        if beams is None:
            return
        width = beams.ids.shape[1]
        own = slice(prompt * width, (prompt + 1) * width)
        running = (beams.ids[prompt], beams.scores[own], beams.idle_rows()[own])
        for ids, score, idle in zip(*(column.tolist() for column in running), strict=True):
            if not idle:
                yield Branch(score, self._tail(ids), finished=False)
        done = (beams.finished_ids[prompt], beams.finished_scores[prompt], beams.finished_lengths[prompt])
        for ids, score, length in zip(*(column.tolist() for column in done), strict=True):
            if length:
                yield Branch(score, self._tail(ids[:length]), finished=True)

    def rows(self, width: int, room: int) -> list[Row]:
        """The branches, each on a row of the screen, as many as there is room for."""
        if room < 1:
            return []
        branches = list(self.branches())
        shown = len(shared(len(branches), room))
        return [*(branch.row(width) for branch in branches[:shown]), *unseen(len(branches) - shown)][:room]

    def _tail(self, ids: Sequence[int]) -> str:
        detokenizer = self._detokenizer.copy()
        return self._held + "".join(map(detokenizer.push, ids[self._count :]))


class _Search:
    """One text that grows as far as its beams agree, with the beams below it."""

    def __init__(self, screen: Screen, trunk: Trunk) -> None:
        self._screen, self._trunk = screen, trunk
        self._flow, self._status = Flow(screen.width), Status(screen)

    def note(self, event: Event) -> None:
        self._status.note(event)
        if isinstance(event, Step) and event.beams is not None:
            self._trunk.grow(event.beams, event.beams.agreed[0])

    def show(self, chunks: Sequence[TextChunk]) -> list[Row]:
        text = "".join(chunk.text for chunk in chunks)
        self._trunk.printed(text)
        return self._flow.add(text)

    def live(self, room: int) -> list[Row]:
        branches = self._trunk.rows(self._screen.width, room - 1)
        return [self._flow.open, *branches, *self._status.rows()][:room]

    def fit(self) -> list[Row]:
        return self._flow.fit(self._screen.width)

    def end(self, result: Result | None) -> list[Row]:
        return [self._flow.end()]


class _Searches:
    """Several texts: a panel for each prompt, which shows the end of what is certain and the beams; in the end, all."""

    def __init__(self, screen: Screen, trunks: Sequence[Trunk], returned: int) -> None:
        self._screen, self._trunks, self._returned = screen, trunks, returned
        self._panes = [Pane(screen.width - BORDERS) for _ in range(len(trunks) * returned)]
        self._status = Status(screen)

    def note(self, event: Event) -> None:
        self._status.note(event)
        if isinstance(event, Step) and event.beams is not None:
            for trunk, agreed in zip(self._trunks, event.beams.agreed, strict=True):
                trunk.grow(event.beams, agreed)

    def show(self, chunks: Sequence[TextChunk]) -> list[Row]:
        for chunk in chunks:
            self._panes[chunk.row].add(chunk.text)
            if chunk.sample == 0:
                self._trunks[chunk.prompt].printed(chunk.text)
        return []

    def live(self, room: int) -> list[Row]:
        status = self._status.rows()
        shares = shared(len(self._trunks), room - len(status), FRAME)
        rows: list[Row] = []
        for prompt, share in enumerate(shares):
            pane = self._panes[prompt * self._returned]
            branches = self._trunks[prompt].rows(self._screen.width - BORDERS, share - 1)
            rows += self._screen.boxed([*pane.last(share - len(branches)), *branches], f"prompt {prompt}")
        return [*rows, *unseen(len(self._trunks) - len(shares)), *status][:room]

    def fit(self) -> list[Row]:
        for pane in self._panes:
            pane.fit(self._screen.width - BORDERS)
        return []

    def end(self, result: Result | None) -> list[Row]:
        scores = None if result is None else result.sequences_scores
        rows: list[Row] = []
        for prompt in range(len(self._trunks)):
            inside: list[Row] = []
            for row in range(prompt * self._returned, (prompt + 1) * self._returned):
                if self._returned > 1:
                    score = "" if scores is None else f" {scores[row].item():.2f}"
                    inside.append([Segment(f"{row % self._returned + 1}{score}", _DIM)])
                inside += self._panes[row].rows
            rows += self._screen.boxed(inside, f"prompt {prompt}")
        return rows
