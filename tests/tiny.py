"""Tiny random models for every shape of cache and input, built from configs."""

from __future__ import annotations

import functools
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

PAD, BOS, EOS, START, VOCAB = 0, 1, 2, 3, 160
SMALL = dict(vocab_size=VOCAB, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, tie_word_embeddings=False)
LLAMA = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)

CONFIGS = {
    "llama": dict(LLAMA),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=512),
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4),
    "mistral": dict(LLAMA, sliding_window=6),
    "gemma3_text": dict(
        LLAMA,
        head_dim=8,
        sliding_window=6,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mixtral": dict(LLAMA, num_local_experts=4, num_experts_per_tok=2),
    "mamba": dict(hidden_size=32, num_hidden_layers=2, state_size=8),
    "recurrent_gemma": dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        lru_width=32,
        attention_window_size=6,
    ),
    "rwkv": dict(hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, context_length=64),
    "t5": dict(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4, decoder_start_token_id=START
    ),
    "bart": dict(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=128,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    ),
}
ENCODER_DECODER = ("t5", "bart")


@functools.cache
def _built(name: str, seed: int) -> torch.nn.Module:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        config = AutoConfig.for_model(name, **SMALL, **CONFIGS[name])
        kind = AutoModelForSeq2SeqLM if name in ENCODER_DECODER else AutoModelForCausalLM
        model = kind.from_config(config, dtype=torch.float32).eval()
        for module in model.modules():  # livelier than what models begin with, so that no two tokens tie
            if isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
                module.weight.data.normal_(std=module.weight.shape[-1] ** -0.5)
            elif isinstance(module, torch.nn.Embedding):
                module.weight.data.normal_(std=0.5)
        head = model.get_output_embeddings()
        if head is not None:
            head.weight.data.normal_(std=1.5 * head.weight.shape[-1] ** -0.5 * (4 if name != "t5" else 8))
    model.requires_grad_(False)
    return model


def tiny_model(name: str = "llama", seed: int = 0, attention: str | None = None) -> transformers.PreTrainedModel:
    """A model of its own, with weights of its own: whatever a test does to it, no other test sees."""
    import copy

    model = copy.deepcopy(_built(name, seed))
    if attention is not None:
        model.set_attn_implementation(attention)
    return model


def prompt(rows: int = 1, length: int = 7, ragged: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Ids and mask; ragged ones are padded on the left."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (rows, length), generator=source)
    mask = torch.ones_like(ids)
    if ragged:
        for row in range(rows):
            mask[row, : row % 3] = 0
        ids = ids.masked_fill(mask == 0, PAD)
    return {"input_ids": ids, "attention_mask": mask}


@functools.cache
def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words `w5`, `w6` ... for the ids of the tiny models."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<s>", "</s>", "<start>", "abcdef", *(f"w{i}" for i in range(5, VOCAB))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
