"""Draws the pictures in `docs/assets`: what the command, an example and the terminal sinks really show, with SmolLM2.

.venv/bin/python docs/make_pictures.py
"""

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from unspool import generate_stream
from unspool.cli import load_model
from unspool.sinks import BeamSink, TerminalSink
from unspool.sinks.screen import Screen

ROOT = Path(__file__).parent.parent
QUESTION = "Why is the sky blue? Answer in three sentences."
WIDTH = 96


def recording() -> Console:
    return Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)


def prompt(command: str) -> Text:
    return Text.assemble(("$ ", "bold green"), (command, "bold"))


def output(*args: str) -> Text:
    return Text(
        subprocess.run([sys.executable, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.rstrip("\n")
    )


def layers() -> Text:
    text = output("examples/hidden_states.py")
    text.highlight_regex(r"·+", "dim")
    text.highlight_regex(r"█+", "cyan")
    text.highlight_regex(r"'.*?'", "yellow")
    return text


def save(console: Console, name: str, title: str) -> None:
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from elsewhere
    svg = svg.replace("Fira Code, monospace", "Fira Code, Menlo, Consolas, DejaVu Sans Mono, monospace")
    target = ROOT / "docs" / "assets" / name
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


class Watched(Screen):
    """A screen that keeps what was drawn."""

    rows, live = (), ()

    def update(self, finished, live):
        Watched.rows = (*Watched.rows, *finished)
        Watched.live = tuple(live)
        super().update(finished, live)


def picture(sink, stop: int, **asked) -> Segments:
    """What a sink shows in the middle of a run."""
    import unspool.sinks.live

    unspool.sinks.live.Screen = Watched
    Watched.rows, Watched.live = (), ()
    with generate_stream(**asked, sinks=[sink]) as stream:
        for step in stream:
            if step.index == stop:
                return Segments([part for row in [*Watched.rows, *Watched.live] for part in [*row, Segment.line()]])
    raise SystemExit(f"The run ended before step {stop}.")


def main() -> None:
    console = recording()
    for part in (
        prompt(f'unspool generate "{QUESTION}"'),
        output("-m", "unspool", "generate", QUESTION),
        "",
        prompt("python examples/hidden_states.py"),
    ):
        console.print(part)
    console.print(layers())
    save(console, "terminal.svg", "unspool")

    model, tokenizer = load_model()
    messages = [{"role": "user", "content": QUESTION}]
    chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    screen = Console(file=io.StringIO(), force_terminal=True, width=WIDTH, height=30)

    console = recording()
    console.print(prompt(f'unspool generate --probabilities --alternatives 4 --stats "{QUESTION}"'))
    live = TerminalSink(screen, tokenizer=tokenizer, probabilities=True, alternatives=4, stats=True)
    console.print(picture(live, 70, model=model, **chat, max_new_tokens=200, do_sample=False), end="")
    save(console, "live.svg", "the terminal sink, at the 71st token")

    console = recording()
    console.print(prompt('unspool generate --no-chat --num-beams 5 "The most important thing about a library is"'))
    inputs = tokenizer("The most important thing about a library is", return_tensors="pt")
    beams = BeamSink(screen, tokenizer=tokenizer)
    console.print(picture(beams, 24, model=model, **inputs, max_new_tokens=40, num_beams=5, do_sample=False), end="")
    save(console, "beams.svg", "the beam sink, at the 25th step of a search with 5 beams")


if __name__ == "__main__":
    main()
