"""Draws `docs/assets/terminal.svg`: what the command and an example really print, with SmolLM2.

.venv/bin/python docs/make_terminal_svg.py
"""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from unspool.cli import app

ROOT = Path(__file__).parent.parent
QUESTION = "Why is the sky blue? Answer in three sentences."


def prompt(command: str) -> Text:
    return Text.assemble(("$ ", "bold green"), (command, "bold"))


def answer() -> str:
    return CliRunner().invoke(app, ["generate", QUESTION], catch_exceptions=False).stdout.strip()


def layers() -> Text:
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(ROOT / "examples" / "hidden_states.py"), run_name="__main__")
    text = Text(printed.getvalue().rstrip("\n"))
    text.highlight_regex(r"·+", "dim")
    text.highlight_regex(r"█+", "cyan")
    text.highlight_regex(r"'.*?'", "yellow")
    return text


def main() -> None:
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True, highlight=False)
    for part in (
        prompt(f'unspool generate "{QUESTION}"'),
        Text(answer()),
        "",
        prompt("python examples/hidden_states.py"),
    ):
        console.print(part)
    console.print(layers())
    svg = console.export_svg(title="unspool")
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from elsewhere
    svg = svg.replace("Fira Code, monospace", "Fira Code, Menlo, Consolas, DejaVu Sans Mono, monospace")
    target = ROOT / "docs" / "assets" / "terminal.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
