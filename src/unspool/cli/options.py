"""The options that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from unspool.cli.output import Format
from unspool.cli.settings import SETTINGS

__all__ = [
    "Alternatives",
    "Device",
    "Dtype",
    "FormatOption",
    "ModelName",
    "Probabilities",
    "SHOWN",
    "Stats",
    "System",
    "with_settings",
]

SHOWN = "How it is shown"

ModelName = Annotated[str | None, typer.Option(help="A folder, a hub id or a .gguf file; if none is given, SmolLM2.")]
System = Annotated[str | None, typer.Option(help="The system message of the chat.")]
Device = Annotated[
    str | None, typer.Option(help="Where to run: cpu, cuda ...; if not given, on an accelerator if there is one.")
]
Dtype = Annotated[str, typer.Option(help="What to compute in: float32, bfloat16 ...; auto is the model's own.")]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        rich_help_panel=SHOWN,
        show_default=False,
        help="text; live: drawn as it comes; beams: what they agree on, and each of them; jsonl, sse: a record a step. "
        "If not given, beams or live on a terminal, else text.",
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", rich_help_panel=SHOWN, help="live: colour text by its probability.")
]
Alternatives = Annotated[
    int, typer.Option(min=0, rich_help_panel=SHOWN, help="live: name this many of the likeliest tokens.")
]
Stats = Annotated[
    bool, typer.Option("--stats", rich_help_panel=SHOWN, help="live: tell tokens per second and the time to the first.")
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each of `SETTINGS`; those that were given reach it as keywords."""
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [parameter for parameter in own.values() if parameter.kind is not parameter.VAR_KEYWORD]
    for name, (panel, kind, text) in SETTINGS.items():
        option = typer.Option(help=text, rich_help_panel=panel, show_default=False)
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
            )
        )

    def run(**given: Any) -> None:
        command(**{name: value for name, value in given.items() if name in own or value not in (None, [])})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
