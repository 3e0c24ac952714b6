"""Tiny models that make sound, and what they take."""

import functools

import torch
import transformers

VOCAB = 160
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
ENCODEC = dict(
    num_filters=4,
    upsampling_ratios=[2, 2],
    codebook_size=32,
    codebook_dim=32,
    hidden_size=32,
    num_lstm_layers=1,
    target_bandwidths=[1.0],
    sampling_rate=64,
    normalize=False,
)
MIMI = dict(
    hidden_size=32,
    num_filters=4,
    upsampling_ratios=[2, 2],
    kernel_size=3,
    codebook_size=32,
    codebook_dim=16,
    num_quantizers=4,
    vector_quantization_hidden_dimension=16,
    upsample_groups=32,
    num_hidden_layers=1,
    use_causal_conv=True,
    sampling_rate=64,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=8,
)


def seeded(kind, config, scale=0.3):
    """A model whose choices are far apart."""
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "codec" not in name and "audio_encoder" not in name:
            weight.data.normal_(0, scale)
    return model


def text(rows=2, length=6, low=5, high=100):
    ids = torch.randint(low, high, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def decoder_config(kind, channels=1):
    size = dict(vocab_size=32, ffn_dim=64, num_codebooks=4, pad_token_id=32, bos_token_id=32, audio_channels=channels)
    return kind(**SMALL, **size)


@functools.cache
def musicgen(melody=False):
    prefix = "MusicgenMelody" if melody else "Musicgen"
    t5 = dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    config = getattr(transformers, prefix + "Config")(
        text_encoder={"model_type": "t5", **t5},
        audio_encoder={"model_type": "encodec", **ENCODEC},
        decoder=decoder_config(getattr(transformers, prefix + "DecoderConfig")).to_dict(),
        **({"chroma_length": 4} if melody else {}),
    )
    model = seeded(getattr(transformers, prefix + "ForConditionalGeneration"), config)
    model.generation_config.decoder_start_token_id = model.generation_config.pad_token_id = 32
    return model, text()


@functools.cache
def musicgen_decoder(channels=1):
    model = seeded(transformers.MusicgenForCausalLM, decoder_config(transformers.MusicgenDecoderConfig, channels))
    model.generation_config.decoder_start_token_id = model.generation_config.pad_token_id = 32
    model.generation_config.update(num_return_sequences=1, num_beams=1)  # its own generate asks for both
    return model, torch.full((2 * 4, 1), 32)


@functools.cache
def csm():
    config = transformers.CsmConfig(
        **SMALL,
        intermediate_size=64,
        num_key_value_heads=2,
        num_codebooks=4,
        codebook_pad_token_id=1,
        codebook_eos_token_id=0,
        vocab_size=40,
        text_vocab_size=VOCAB,
        audio_token_id=101,
        audio_eos_token_id=102,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        codec_config={"model_type": "mimi", **MIMI, "codebook_size": 64},
        depth_decoder_config=dict(
            num_codebooks=4,
            backbone_hidden_size=32,
            vocab_size=40,
            max_position_embeddings=5,
            intermediate_size=64,
            num_key_value_heads=2,
            **SMALL,
        ),
    )
    return seeded(transformers.CsmForConditionalGeneration, config), text()


@functools.cache
def dia():
    size = dict(**SMALL, intermediate_size=64, num_key_value_heads=4, head_dim=8)
    ids = dict(pad_token_id=57, eos_token_id=56, bos_token_id=58)
    cross = dict(cross_num_attention_heads=4, cross_head_dim=8, cross_num_key_value_heads=4, cross_hidden_size=32)
    config = transformers.DiaConfig(
        encoder_config=dict(vocab_size=VOCAB, **size),
        decoder_config=dict(num_channels=3, vocab_size=60, **size, **cross, **ids),
        delay_pattern=[0, 1, 2],
        **ids,
    )
    model = seeded(transformers.DiaForConditionalGeneration, config)
    model.generation_config.guidance_scale = None
    model.generation_config.decoder_start_token_id = 58
    return model, text()


@functools.cache
def pocket_tts():
    config = transformers.PocketTTSConfig(
        **SMALL,
        intermediate_size=64,
        latent_dim=8,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        audio_prompt_token_id=101,
        audio_latent_token_id=102,
        audio_prompt_bos_token_id=103,
        audio_bos_token_id=104,
        flow_head_config=dict(
            hidden_size=32, num_hidden_layers=1, latent_dim=8, condition_dim=32, frequency_embedding_size=16
        ),
    )
    inputs = text()
    inputs["input_ids"][:, -1] = config.audio_bos_token_id
    return seeded(transformers.PocketTTSForConditionalGeneration, config), inputs


@functools.cache
def bark():
    def part(**sizes):
        return dict(hidden_size=32, num_layers=2, num_heads=4, block_size=256, **sizes)

    config = transformers.BarkConfig(
        semantic_config=part(input_vocab_size=200, output_vocab_size=24),
        coarse_acoustics_config=part(input_vocab_size=100, output_vocab_size=100),
        fine_acoustics_config=part(input_vocab_size=33, output_vocab_size=33, n_codes_total=4, n_codes_given=1),
        codec_config={"model_type": "encodec", **ENCODEC},
    )
    model = seeded(transformers.BarkModel, config, scale=0.2)
    semantic = dict(eos_token_id=20, text_encoding_offset=25, text_pad_token=198, semantic_infer_token=199)
    coarse = dict(coarse_semantic_pad_token=90, coarse_infer_token=91, max_coarse_input_length=16, sliding_window_len=6)
    settings = model.generation_config = transformers.GenerationConfig()  # as it is when loaded
    settings.sample_rate, settings.codebook_size = 64, 32
    settings.semantic_config = dict(**semantic, semantic_vocab_size=20, max_input_semantic_length=16, max_new_tokens=12)
    settings.coarse_acoustics_config = dict(**coarse, max_coarse_history=12)
    settings.fine_acoustics_config = dict(max_fine_history_length=16, max_fine_input_length=32, n_fine_codebooks=4)
    return model, {"input_ids": torch.randint(5, 100, (2, 16), generator=torch.Generator().manual_seed(1))}
