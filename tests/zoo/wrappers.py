"""Tiny models whose class prepares something and then calls the common loop, or that of a part."""

import functools

import torch
import transformers

from tiny import LLAMA, SMALL
from zoo.sound import MIMI, seeded
from zoo.vision import IMAGE

IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
VISION = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
VISION |= dict(image_size=32, patch_size=8)
QFORMER = dict(
    vocab_size=160,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    encoder_hidden_size=32,
)
OPT = dict(
    model_type="opt", vocab_size=160, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
    word_embed_proj_dim=32, max_position_embeddings=128, **IDS,
)  # fmt: skip
LANGUAGE = {"model_type": "llama", **LLAMA, **SMALL}


def draw(seed=1):
    return torch.Generator().manual_seed(seed)


def words(rows=2, length=6):
    ids = torch.randint(5, 100, (rows, length), generator=draw())
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def with_placeholders(count, token=IMAGE, rows=2):
    ids = words(rows)["input_ids"]
    ids = torch.cat([ids[:, :1], torch.full((rows, count), token), ids[:, 1:]], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pixels(rows=2, *more):
    return torch.randn(rows, *more, 3, 32, 32, generator=draw(2))


def made(name, config, scale=0.3, **ids):
    model = seeded(getattr(transformers, name), config, scale)
    for key, value in ids.items():
        setattr(model.generation_config, key, value)
    return model


def blip_config():
    text = dict(vocab_size=160, hidden_size=32, encoder_hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    text |= dict(num_attention_heads=4, max_position_embeddings=64, projection_dim=32, sep_token_id=2, **IDS)
    return transformers.BlipConfig(text_config=text, vision_config={**VISION, "projection_dim": 32})


@functools.cache
def blip():
    return made("BlipForConditionalGeneration", blip_config()), {"pixel_values": pixels(), **words()}


@functools.cache
def blip_question():
    return made("BlipForQuestionAnswering", blip_config()), {"pixel_values": pixels(), **words()}


@functools.cache
def blip_2():
    config = transformers.Blip2Config(
        vision_config=VISION, qformer_config=QFORMER, text_config=OPT, num_query_tokens=4, image_token_index=IMAGE
    )
    return made("Blip2ForConditionalGeneration", config), {"pixel_values": pixels(), **with_placeholders(4)}


def asked():
    ids = words(length=5)["input_ids"]
    return {"qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}


@functools.cache
def instruct_blip():
    config = transformers.InstructBlipConfig(
        vision_config=VISION, qformer_config=QFORMER, text_config=OPT, num_query_tokens=4, image_token_index=IMAGE
    )
    inputs = {"pixel_values": pixels(), **asked(), **with_placeholders(4)}
    return made("InstructBlipForConditionalGeneration", config), inputs


@functools.cache
def instruct_blip_video():
    config = transformers.InstructBlipVideoConfig(
        vision_config=VISION, qformer_config=QFORMER, text_config=OPT, num_query_tokens=4, video_token_index=IMAGE
    )
    inputs = {"pixel_values": pixels(2, 2), **asked(), **with_placeholders(8)}
    return made("InstructBlipVideoForConditionalGeneration", config), inputs


@functools.cache
def kosmos_2():
    text = dict(vocab_size=160, embed_dim=32, layers=2, ffn_dim=64, attention_heads=4, max_position_embeddings=128)
    config = transformers.Kosmos2Config(text_config={**text, **IDS}, vision_config=VISION, latent_query_num=4)
    inputs = with_placeholders(4)
    where = (inputs["input_ids"] == IMAGE).long()
    inputs |= {"pixel_values": pixels(), "image_embeds_position_mask": where}
    return made("Kosmos2ForConditionalGeneration", config), inputs


def granite_speech(plus=False):
    name = "GraniteSpeechPlus" if plus else "GraniteSpeech"
    encoder = dict(hidden_dim=32, num_layers=2, num_heads=4, dim_head=8, input_dim=16, context_size=8, max_pos_emb=16)
    encoder |= dict(output_dim=16, conv_kernel_size=3, feedforward_mult=2)
    projector = {"model_type": "blip_2_qformer", **QFORMER}
    config = getattr(transformers, f"{name}Config")(
        text_config=LANGUAGE, encoder_config=encoder, projector_config=projector, audio_token_index=IMAGE,
        downsample_rate=2, window_size=4, has_lora_adapter=False,
    )  # fmt: skip
    model = made(f"{name}ForConditionalGeneration", config)
    features = torch.randn(2, 8, 16, generator=draw(2))
    count = model.get_audio_features(features).pooler_output[0].shape[0]
    return model, {"input_features": features, **with_placeholders(count)}


@functools.cache
def kyutai():
    config = transformers.KyutaiSpeechToTextConfig(
        vocab_size=160, codebook_vocab_size=33, num_codebooks=4, audio_bos_token_id=32, audio_pad_token_id=103,
        ffn_dim=64,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        sliding_window=20, codec_config=dict(MIMI), **IDS,
    )  # fmt: skip
    model = made("KyutaiSpeechToTextForConditionalGeneration", config)
    sound = torch.randn(2, 1, 20 * model.config.codec_config.frame_size, generator=draw(2))
    return model, {"input_values": sound}


@functools.cache
def janus():
    vq = dict(embed_dim=8, num_embeddings=16, latent_channels=8, base_channels=32, channel_multiplier=(1, 1))
    vq |= dict(num_res_blocks=1, projection_dim=32, image_token_embed_dim=32, num_patches=4, hidden_size=32)
    config = transformers.JanusConfig(
        text_config=LANGUAGE,
        vision_config={**VISION, "projection_dim": 32, "num_image_tokens": 16},
        vq_config=vq,
        image_token_id=IMAGE,
    )
    model = made("JanusForConditionalGeneration", config)
    return model, {"pixel_values": pixels(), **with_placeholders(16)}


@functools.cache
def janus_image():
    model, _ = janus()
    model.generation_config.generation_kwargs = {"boi_token_id": 102}
    return model, {**words(), "generation_mode": "image"}


@functools.cache
def pop2piano():
    config = transformers.Pop2PianoConfig(
        vocab_size=160, composer_vocab_size=2, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **IDS,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = made("Pop2PianoForConditionalGeneration", config)
    model.generation_config.composer_to_feature_token = {"composer1": 150, "composer2": 151}
    return model, {"input_features": torch.randn(2, 6, 32, generator=draw(2)), "composer": "composer1"}


@functools.cache
def clvp():
    text = dict(vocab_size=160, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    text |= dict(projection_dim=32, bos_token_id=1, eos_token_id=2)
    decoder = dict(
        vocab_size=160, hidden_size=32, n_inner=64, num_hidden_layers=2, num_attention_heads=4, num_mel_attn_blocks=1,
        max_position_embeddings=128, max_text_tokens=64, feature_size=16, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config = transformers.ClvpConfig(text_config=text, speech_config=text, decoder_config=decoder, projection_dim=32)
    model = made("ClvpModelForConditionalGeneration", config)
    features = torch.randn(2, 16, 20, generator=draw(2))
    return model, {**words(), "input_features": features, "return_dict_in_generate": True}


@functools.cache
def moshi():
    config = transformers.MoshiConfig(
        vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        num_codebooks=4, audio_vocab_size=32, ffn_dim=64, sliding_window=64, audio_encoder_config=dict(MIMI),
        depth_decoder_config=dict(
            vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
            head_dim=8, input_size=32, ffn_dim=64, audio_vocab_size=32, num_codebooks=4, max_position_embeddings=5,
            sliding_window=5,
        ),
    )  # fmt: skip
    model = made("MoshiForConditionalGeneration", config, pad_token_id=0)
    codes = torch.randint(0, 32, (2, 4, 6), generator=draw(2))
    return model, {**words(), "user_audio_codes": codes, "moshi_audio_codes": codes.flip(0)}


SEAMLESS = dict(
    vocab_size=160, t2u_vocab_size=60, hidden_size=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64,
    decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64,
    speech_encoder_layers=1, speech_encoder_attention_heads=4, speech_encoder_intermediate_size=32,
    feature_projection_input_dim=16, conv_depthwise_kernel_size=3, adaptor_kernel_size=2, adaptor_stride=2,
    t2u_encoder_layers=1, t2u_decoder_layers=1, t2u_encoder_ffn_dim=64, t2u_decoder_ffn_dim=64,
    t2u_encoder_attention_heads=4, t2u_decoder_attention_heads=4, t2u_max_position_embeddings=1024,
    unit_hifi_gan_vocab_size=80, unit_embed_dim=16, lang_embed_dim=8, spkr_embed_dim=8, vocoder_num_langs=4,
    vocoder_offset=0, vocoder_num_spkrs=4, upsample_initial_channel=16, upsample_rates=[2, 2],
    upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
    decoder_start_token_id=3, pad_token_id=0, bos_token_id=2, eos_token_id=3, t2u_pad_token_id=1, t2u_bos_token_id=0,
    t2u_eos_token_id=2, variance_predictor_embed_dim=16, variance_predictor_hidden_dim=16,
    variance_predictor_kernel_size=3,
)  # fmt: skip


@functools.cache
def seamless(part, version=""):
    name = f"SeamlessM4T{version}"
    config = getattr(transformers, f"{name}Config")(
        **(SEAMLESS | (dict(char_vocab_size=40, t2u_variance_predictor_embed_dim=32) if version else {}))
    )
    model = made(name + part, config, scale=0.2 if version and part != "Model" else 0.3)
    settings = model.generation_config
    settings.text_decoder_lang_to_code_id = {"eng": 10, "deu": 11}
    settings.t2u_lang_code_to_id = {"eng": 10, "deu": 11}
    settings.vocoder_lang_code_to_id = {"eng": 0, "deu": 1}
    settings.id_to_text = {str(i): chr(97 + i % 26) for i in range(160)}
    settings.char_to_id = {chr(97 + i): 4 + i for i in range(26)}
    if "SpeechTo" in part:
        inputs = {
            "input_features": torch.randn(2, 12, 16, generator=draw(2)),
            "attention_mask": torch.ones(2, 12).long(),
        }
    else:
        inputs = words()
    return model, {**inputs, "tgt_lang": "eng"}
