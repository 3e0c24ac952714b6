"""The command line: `unspool generate` and `unspool chat`.

torch and transformers are imported only once there is something to generate, so that `--help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from unspool.cli.chatting import chat
from unspool.cli.generating import generate
from unspool.cli.loading import load_model
from unspool.cli.settings import SETTINGS

__all__ = ["SETTINGS", "app", "load_model", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Runs the command line."""
    app(prog_name="unspool")


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"unspool {version('unspool')}")
        raise typer.Exit


@app.callback()
def _unspool(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Generation with transformers as a stream of steps."""


app.command()(generate)
app.command()(chat)
