"""Tiny models that write an answer and then speak it."""

import functools

import torch
import transformers

from zoo.sound import seeded
from zoo.wrappers import words

ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
TEXT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
TEXT |= dict(vocab_size=160, max_position_embeddings=256, rope_parameters=ROPE)
SOUND = dict(
    num_mel_bins=16, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=32, d_model=32, output_dim=32
)
SIGHT = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=4, patch_size=4, out_hidden_size=32)
MEDIA = dict(audio_token_index=101, image_token_index=102, video_token_index=103)
MEDIA |= dict(vision_start_token_id=107, vision_end_token_id=108)


@functools.cache
def qwen_2_5():
    thinker = dict(
        text_config=TEXT,
        audio_config={**SOUND, "n_window": 8, "max_source_positions": 64},
        vision_config={**SIGHT, "window_size": 16, "fullatt_block_indexes": [1]},
        **MEDIA,
    )
    talker = dict(
        **{**TEXT, "vocab_size": 60, "head_dim": 8},
        **MEDIA,
        embedding_size=32,
        tts_text_start_token_id=110,
        tts_text_end_token_id=111,
        tts_text_pad_token_id=112,
        tts_codec_start_token_id=50,
        tts_codec_end_token_id=51,
        tts_codec_pad_token_id=52,
        tts_codec_mask_token_id=53,
        pad_token_id=0,
    )
    dit = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, head_dim=16, emb_dim=16, num_embeds=60)
    dit |= dict(mel_dim=8, enc_emb_dim=8, enc_dim=8, enc_channels=[8, 8, 8, 8, 24], enc_attention_channels=8)
    dit |= dict(enc_se_channels=8, look_ahead_layers=[0], look_backward_layers=[0])
    gan = dict(mel_dim=8, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4])
    gan |= dict(resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3, 5]])
    config = transformers.Qwen2_5OmniConfig(
        thinker_config=thinker,
        talker_config=talker,
        token2wav_config=dict(dit_config=dit, bigvgan_config=gan),
        enable_audio_output=True,
    )
    model = seeded(transformers.Qwen2_5OmniForConditionalGeneration, config)
    draw = torch.Generator().manual_seed(3)
    speaker = {"bos_token": 113, "cond": torch.randn(1, 8, generator=draw)}
    speaker["ref_mel"] = torch.randn(1, 12, 8, generator=draw)
    model.speaker_map = {"Chelsie": speaker}
    lengths = dict(thinker_max_new_tokens=6, talker_max_new_tokens=8, talker_eos_token_id=[51, 52])
    return model, {**words(), **lengths}
