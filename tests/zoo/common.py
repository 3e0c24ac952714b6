"""Tiny models of the classes for text that go by the common `generate`, built from their configs by size."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from tiny import BOS, EOS, PAD, START, VOCAB
from unspool import generate, generate_stream
from zoo import vision
from zoo.kinds import compare
from zoo.sound import seeded

SIZES = dict(
    hidden_size=32, d_model=32, n_embd=32, embed_dim=32, embedding_size=32, dim=32, intermediate_size=64, ffn_dim=64,
    encoder_ffn_dim=64, decoder_ffn_dim=64, d_ff=64, n_inner=64, num_hidden_layers=2, num_layers=2, n_layer=2, layers=2,
    encoder_layers=2, decoder_layers=2, num_decoder_layers=2, num_attention_heads=4, num_heads=4, n_head=4,
    encoder_attention_heads=4, decoder_attention_heads=4, num_key_value_heads=2, head_dim=8, d_kv=8, vocab_size=VOCAB,
    max_position_embeddings=128, n_positions=128, n_ctx=128, word_embed_proj_dim=32, rotary_dim=4, num_experts=4,
    num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_routed_experts=4, n_group=1, topk_group=1,
    shared_expert_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16,
    qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, sliding_window=6, state_size=8, mamba_d_state=8,
    mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_chunk_size=4, chunk_size=4, num_buckets=8,
    max_source_positions=64, max_target_positions=128, linear_key_head_dim=8, linear_value_head_dim=8,
    linear_num_key_heads=2, linear_num_value_heads=4, global_head_dim=16, hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=VOCAB, d_inner=64, index_head_dim=8, index_n_heads=2, index_topk=6,
    attention_hidden_size=32,
)  # fmt: skip
"""What a setting of this name becomes where its default is a number."""
IDS = dict(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9},
    "beams": {"num_beams": 3, "do_sample": False},
    "outputs": {
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
    },
}
LENGTH = 8
SEEING = {"LlavaForConditionalGeneration": vision.llava, "Qwen2VLForConditionalGeneration": vision.qwen2_vl}


def _names() -> list[str]:
    mappings = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    held = {
        name
        for mapping in mappings
        for given in mapping.values()
        for name in ([given] if isinstance(given, str) else given)
    }
    return sorted(name for name in held if hasattr(transformers, name))


NAMES = _names()


@functools.cache
def build(name: str) -> tuple[Any, dict[str, Any]] | None:
    """A tiny model of the class and its inputs; None if its config can't be made small by names alone."""
    if name in SEEING:
        return SEEING[name]()
    kind = getattr(transformers, name)
    try:
        config = kind.config_class()
        given = {key: size for key, size in SIZES.items() if type(getattr(config, key, None)) is int}
        config = kind.config_class(**given, **IDS)
        if sum(weight.numel() for weight in _on_nothing(kind, config).parameters()) > 3_000_000:
            return None
        model = seeded(kind, config)
        model.generation_config.decoder_start_token_id = START
        ids = torch.randint(10, 100, (2, 6), generator=torch.Generator().manual_seed(1))
        ids[0, :2] = PAD
        inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
        model.generate(**inputs, max_new_tokens=2)
    except Exception:
        return None
    return model, inputs


def _on_nothing(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(config)


@functools.cache
def prove(name: str, method: str) -> str:
    """`"equal"`, or why there is nothing to compare.

    Raises:
        AssertionError: What is streamed differs from what `generate` makes.
    """
    made = build(name)
    if made is None:
        return "not built"
    model, inputs = made
    how = {**METHODS[method], "max_new_tokens": LENGTH}
    try:
        torch.manual_seed(7)
        expected = model.generate(**inputs, **how)
    except Exception as error:
        return f"its own fails: {type(error).__name__}"
    torch.manual_seed(7)
    compare(generate(model, **inputs, **how), expected)
    torch.manual_seed(7)
    sequences = expected if isinstance(expected, torch.Tensor) else expected.sequences
    assert torch.equal(generate_stream(model, **inputs, **how).to().sequences, sequences)
    return "equal"
