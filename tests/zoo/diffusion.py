"""A tiny model that writes in blocks."""

import functools

import torch
import transformers

from zoo.sound import seeded


@functools.cache
def diffusion_gemma():
    text = dict(
        vocab_size=160,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=160,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=8)
    config = transformers.DiffusionGemmaConfig(canvas_length=4, text_config=text, vision_config=vision)
    model = seeded(transformers.DiffusionGemmaForBlockDiffusion, config)
    ids = torch.randint(5, 100, (2, 6), generator=torch.Generator().manual_seed(1))
    return model, {"input_ids": ids}
