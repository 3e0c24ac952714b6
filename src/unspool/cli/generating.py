"""`unspool generate`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from unspool.cli.loading import load_model, quietly
from unspool.cli.options import (
    SHOWN,
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
from unspool.cli.output import Look, plainly, status
from unspool.cli.prompts import encoded
from unspool.cli.settings import ENOUGH_TOKENS
from unspool.errors import ArgumentError

__all__ = ["generate"]


@with_settings
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer or to continue; - or a pipe: read from standard input.")
    ] = None,
    *,
    model: ModelName = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Answer as in a chat, or continue the text; if not given, chat where the model has a chat template.",
            show_default=False,
        ),
    ] = None,
    system: System = None,
    device: Device = None,
    dtype: Dtype = "auto",
    format: FormatOption = None,
    probabilities: Probabilities = False,
    alternatives: Alternatives = 0,
    stats: Stats = False,
    top_logprobs: Annotated[
        int, typer.Option(min=0, rich_help_panel=SHOWN, help="jsonl, sse: this many likeliest tokens in each record.")
    ] = 0,
    **settings: Any,
) -> None:
    """Stream a model's answer to a prompt, token by token.

    The options below have the names and meanings that they have in transformers' GenerationConfig; what isn't
    given is as the model has it.
    """
    look = Look(format, probabilities, alternatives, stats, top_logprobs)
    with plainly():
        text = _read(prompt)
        with status(f"Loading {model or 'SmolLM2'}"):
            loaded, tokenizer = load_model(model, device=device, dtype=dtype)
        inputs = encoded(tokenizer, text, chat=chat, system=system).to(loaded.device)
        if "max_length" not in settings:
            settings.setdefault("max_new_tokens", ENOUGH_TOKENS)
        sink = look.sink(settings, loaded, tokenizer)

        from unspool.api import generate_stream

        with quietly(), generate_stream(loaded, **inputs, tokenizer=tokenizer, **settings) as stream:
            stream.to(sink)


def _read(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
        raise ArgumentError("There is no prompt. Give one, or pipe one in.")
    return typer.get_binary_stream("stdin").read().decode().rstrip("\n")
