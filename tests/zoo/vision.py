"""Tiny models that look at images, and what they take."""

import functools

import torch
import transformers

from tiny import LLAMA, SMALL
from zoo.sound import seeded

IMAGE = 101
CLIP = dict(
    model_type="clip_vision_model",
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
    projection_dim=32,
)


@functools.cache
def llava(side=32):
    """A tower of its own in front of the language model, and one placeholder for each patch."""
    config = transformers.LlavaConfig(
        vision_config={**CLIP, "image_size": side},
        text_config={"model_type": "llama", **LLAMA, **SMALL, "max_position_embeddings": 2048},
        image_token_id=IMAGE,
        image_seq_length=(side // 8) ** 2,
        vision_feature_layer=-1,
    )
    return seeded(transformers.LlavaForConditionalGeneration, config), prompt((side // 8) ** 2, side)


def prompt(patches, side, rows=2):
    draw = torch.Generator().manual_seed(1)
    words = torch.randint(5, 100, (rows, 4), generator=draw)
    ids = torch.cat([words[:, :1], torch.full((rows, patches), IMAGE), words[:, 1:]], dim=1)
    pixels = torch.randn(rows, 3, side, side, generator=draw)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


@functools.cache
def qwen2_vl():
    """Positions in three dimensions, of which the model remembers the offsets."""
    vision = dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=4, mlp_ratio=2, spatial_merge_size=2)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    config = transformers.Qwen2VLConfig(
        vision_config=vision,
        text_config={**LLAMA, **SMALL, "rope_parameters": rope},
        image_token_id=IMAGE,
        vision_start_token_id=102,
        vision_end_token_id=103,
        video_token_id=104,
    )
    draw = torch.Generator().manual_seed(1)
    grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
    patches = (grid.prod(-1) // 4).tolist()
    rows = [
        torch.cat([torch.tensor([5, 102]), torch.full((count,), IMAGE), torch.randint(5, 100, (3,), generator=draw)])
        for count in patches
    ]
    longest = max(map(len, rows))
    ids = torch.stack([torch.cat([torch.zeros(longest - len(row), dtype=torch.long), row]) for row in rows])
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 4 * 4, generator=draw)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": pixels, "image_grid_thw": grid}
    return seeded(transformers.Qwen2VLForConditionalGeneration, config), inputs
