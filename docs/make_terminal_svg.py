"""Draws `docs/assets/terminal.svg`: what the command and an example really print, with SmolLM2.

.venv/bin/python docs/make_terminal_svg.py
"""

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
QUESTION = "Why is the sky blue? Answer in three sentences."


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


def main() -> None:
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True, highlight=False)
    for part in (
        prompt(f'unspool generate "{QUESTION}"'),
        output("-m", "unspool", "generate", QUESTION),
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
