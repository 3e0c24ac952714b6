"""Where the output of commands goes, and how they end."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from unspool.cli.settings import without_effect
from unspool.errors import ArgumentError, UnspoolError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from unspool.sinks import Sink

__all__ = ["Format", "Look", "note", "plainly", "say", "status"]


class Format(enum.StrEnum):
    """How an answer is written."""

    TEXT = "text"
    LIVE = "live"
    BEAMS = "beams"
    JSONL = "jsonl"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class Look:
    """How answers are shown.

    Attributes:
        format: The format; None: beams or live on a terminal, else text.
        probabilities: Whether text is coloured by probability.
        alternatives: How many alternatives of the last token to name.
        stats: Whether to tell how fast it is.
        top_logprobs: How many alternatives of each token are in the records of `jsonl` and `sse`.
    """

    format: Format | None = None
    probabilities: bool = False
    alternatives: int = 0
    stats: bool = False
    top_logprobs: int = 0

    def sink(self, settings: dict[str, Any], model: PreTrainedModel, tokenizer: Any) -> Sink:
        """A sink that shows a run. Says which options change nothing in it.

        Args:
            settings: The settings of the run that were given.
            model: The model.
            tokenizer: Its tokenizer.

        Raises:
            ArgumentError: Beams are to be shown, and there are none.
        """
        beams = settings.get("num_beams", getattr(model.generation_config, "num_beams", None)) or 1
        format = self._settled(beams)
        _say_unused("without --do-sample", without_effect(settings, model))
        _say_unused(f"with --format {format}", self._unused(format))
        return self._made(format, tokenizer)

    def _settled(self, beams: int) -> Format:
        if self.format is Format.BEAMS and beams == 1:
            raise ArgumentError("--format beams shows a beam search; give --num-beams, too.")
        if self.format is not None:
            return self.format
        if not sys.stdout.isatty():
            return Format.TEXT
        return Format.BEAMS if beams > 1 else Format.LIVE

    def _unused(self, format: Format) -> list[str]:
        used = {
            Format.LIVE: ("probabilities", "alternatives", "stats"),
            Format.JSONL: ("top_logprobs",),
            Format.SSE: ("top_logprobs",),
        }
        names = ("probabilities", "alternatives", "stats", "top_logprobs")
        return [name for name in names if getattr(self, name) and name not in used.get(format, ())]

    def _made(self, format: Format, tokenizer: Any) -> Sink:
        from unspool import sinks

        if format is Format.TEXT:
            return sinks.TextSink(sys.stdout)
        if format is Format.LIVE:
            return sinks.TerminalSink(
                probabilities=self.probabilities, alternatives=self.alternatives, stats=self.stats
            )
        if format is Format.BEAMS:
            return sinks.BeamSink()
        kind = sinks.JsonlSink if format is Format.JSONL else sinks.SseSink
        made: Sink = kind(sys.stdout, tokenizer=tokenizer, top_logprobs=self.top_logprobs)
        return made


def _say_unused(when: str, names: list[str]) -> None:
    if names:
        say(f"{when} these change nothing: {', '.join('--' + name.replace('_', '-') for name in names)}")


def say(text: str) -> None:
    """Says something that is no part of the output."""
    typer.echo(f"unspool: {' '.join(text.split())}", err=True)


def note(text: str) -> None:
    """Answers somebody at the keyboard."""
    typer.echo(text, err=True)


@contextlib.contextmanager
def status(text: str) -> Iterator[None]:
    """Shows that something is going on, if somebody is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(text):  # the one that is there now, whatever stands in for it meanwhile
        yield


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Turns what goes wrong into one line and an exit code, as a command should."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Nobody reads on. What is still buffered would raise again when the interpreter flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except (UnspoolError, OSError, ImportError, ValueError) as error:
        say(str(error))
        raise typer.Exit(2) from None
