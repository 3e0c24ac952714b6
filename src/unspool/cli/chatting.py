"""`unspool chat`."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unspool.cli.loading import load_model, quietly
from unspool.cli.options import (
    Alternatives,
    Device,
    Dtype,
    FormatOption,
    ModelName,
    Probabilities,
    Stats,
    System,
    with_settings,
)
from unspool.cli.output import Look, note, plainly, say, status
from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from unspool.cli.conversation import Conversation
    from unspool.sinks import Sink

__all__ = ["chat"]

_HELP = """\
/retry              answer the last question again
/undo               take the last question and its answer back
/clear              forget everything but the system message
/set                show the settings; /set NAME VALUE changes one, /set NAME none leaves it to the model
/save [FILE]        keep the conversation in a file
/load [FILE]        go on with the conversation in a file
/quit               leave, as Ctrl-D does
Ctrl-C stops an answer and keeps what there is of it. A line that ends in \\ goes on in the next."""


@with_settings
def chat(
    *,
    model: ModelName = None,
    system: System = None,
    file: Annotated[
        Path | None, typer.Option(help="Keep the conversation in this file, and go on with what is in it.")
    ] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    format: FormatOption = None,
    probabilities: Probabilities = False,
    alternatives: Alternatives = 0,
    stats: Stats = False,
    **settings: Any,
) -> None:
    """Talk with a model. /help tells what can be said besides."""
    with plainly():
        with status(f"Loading {model or 'SmolLM2'}"):
            loaded, tokenizer = load_model(model, device=device, dtype=dtype)
        from unspool.cli.conversation import Conversation

        with quietly():
            conversation = Conversation(loaded, tokenizer, system=system, settings=settings)
            _Session(conversation, Look(format, probabilities, alternatives, stats), file).run()


class _Session:
    """Somebody at a keyboard, or a pipe, who talks with a model.

    Args:
        conversation: The conversation.
        look: How answers are shown.
        file: Where the conversation is kept; None: nowhere.
    """

    def __init__(self, conversation: Conversation, look: Look, file: Path | None) -> None:
        self._conversation, self._look, self._file = conversation, look, file
        self._keeps = file is not None
        self._lines = _Keyboard(conversation) if sys.stdin.isatty() else _Pipe()

    def run(self) -> None:
        """Takes line after line until there is none. An error of one doesn't end the session."""
        if self._file is not None and self._file.exists():
            self._load("")
        self._lines.greet()
        for line in self._lines:
            if line.strip() in ("/quit", "/exit"):
                return
            try:
                self._take(line)
            except BrokenPipeError:
                raise
            except Exception as error:
                say(str(error) or type(error).__name__)

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self._conversation.history.append(line)
        if not line.startswith("/"):
            self._answer(lambda: self._conversation.ask(line, self._sink))
            return
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: note(_HELP),
            "clear": self._clear,
            "undo": self._undo,
            "retry": lambda rest: self._answer(lambda: self._conversation.retry(self._sink)),
            "save": self._save,
            "load": self._load,
            "set": self._set,
        }
        if name not in commands:
            raise ArgumentError(f"There is no /{name}; /help tells what there is.")
        commands[name](rest.strip())

    def _answer(self, ask: Callable[[], Any]) -> None:
        try:
            with _ctrl_c_calls(self._conversation.stop):
                ask()
        except KeyboardInterrupt:
            pass  # a second one, in the middle of a step; what there was is kept
        finally:
            self._keep()

    def _sink(self) -> Sink:
        conversation = self._conversation
        return self._look.sink(conversation.settings, conversation.model, conversation.tokenizer)

    def _clear(self, rest: str) -> None:
        self._conversation.clear()
        self._keep()
        note("Forgotten.")

    def _undo(self, rest: str) -> None:
        note(f"Taken back: {self._conversation.undo()}")
        self._keep()

    def _save(self, rest: str) -> None:
        path = self._path(rest)
        self._conversation.save(path)
        self._file = path
        note(f"Saved in {path}.")

    def _load(self, rest: str) -> None:
        path = self._path(rest)
        self._conversation.load(path)
        self._file = path
        self._lines.remember()
        asked = sum(message["role"] == "user" for message in self._conversation.messages)
        note(f"{path}: {asked} question{'s' if asked != 1 else ''} so far.")

    def _path(self, given: str) -> Path:
        if given:
            return Path(given).expanduser()
        if self._file is None:
            raise ArgumentError("Say which file.")
        return self._file

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if value.strip():
            self._conversation.set(name, value.strip())
            self._keep()
        settings = self._conversation.settings
        note("\n".join(f"{name} = {value}" for name, value in settings.items()) or "All as the model has it.")

    def _keep(self) -> None:
        if self._keeps and self._file is not None:
            self._conversation.save(self._file)


class _Keyboard:
    """Lines that somebody types, with editing, and a history that is kept with the conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (from now on `input` edits)

    def greet(self) -> None:
        """Says how to leave."""
        note("Ctrl-C stops an answer, Ctrl-D leaves, /help tells what else there is.")

    def remember(self) -> None:
        """Makes what was typed in the conversation the history."""
        with contextlib.suppress(ImportError):
            import readline

            readline.clear_history()
            for line in self._conversation.history:
                readline.add_history(line)

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield _typed()
            except EOFError:
                note("")
                return
            except KeyboardInterrupt:
                note("\nCtrl-D leaves.")


class _Pipe:
    """Lines of standard input, where nobody types."""

    def greet(self) -> None:
        """Nothing: nobody is there."""

    def remember(self) -> None:
        """Nothing: there is no history to scroll through."""

    def __iter__(self) -> Iterator[str]:
        for line in sys.stdin:
            yield line.rstrip("\n")


def _typed() -> str:
    """A line, and those that it is continued in."""
    prompts = ("> ", ". ") if sys.stdout.isatty() else ("", "")
    line = input(prompts[0])
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{input(prompts[1])}"
    return line


@contextlib.contextmanager
def _ctrl_c_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Lets the first Ctrl-C call a function instead of interrupting whatever runs; a second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def once(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
