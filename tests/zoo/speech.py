"""Tiny models that listen to speech, and what they take."""

import functools

import torch
import transformers

from zoo.sound import seeded

MARKS = 150  # the id before the first time mark


@functools.cache
def whisper(vocab=200):
    """Windows of 0.4 seconds, which is 40 frames."""
    size = dict(d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64)
    heads = dict(encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=vocab, num_mel_bins=8)
    special = dict(pad_token_id=2, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3)
    config = transformers.WhisperConfig(**size, **heads, **special, max_source_positions=20, max_target_positions=64)
    model = seeded(transformers.WhisperForConditionalGeneration, config)
    settings = dict(
        no_timestamps_token_id=MARKS,
        max_initial_timestamp_index=5,
        is_multilingual=True,
        lang_to_id={"<|en|>": 4, "<|de|>": 5},
        task_to_id={"transcribe": 6, "translate": 7},
        prev_sot_token_id=8,
        begin_suppress_tokens=[2],
        suppress_tokens=[],
        forced_decoder_ids=None,
        alignment_heads=[[0, 1], [1, 2]],
    )
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def sound(seconds=(1.0,), seed=1):
    """Features of sounds of some lengths, and their mask where they differ."""
    frames = [round(each * 100) for each in seconds]
    features = torch.randn(len(frames), 8, max(frames), generator=torch.Generator().manual_seed(seed))
    mask = torch.stack([torch.arange(max(frames)) < each for each in frames]).long()
    given = {"input_features": features}
    return given if len(set(frames)) == 1 else {**given, "attention_mask": mask}


@functools.cache
def speech_t5(reduction=2):
    size = dict(hidden_size=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64)
    heads = dict(encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=160, num_mel_bins=8)
    nets = dict(speech_decoder_postnet_units=16, speech_decoder_prenet_units=16, speaker_embedding_dim=16)
    config = transformers.SpeechT5Config(**size, **heads, **nets, reduction_factor=reduction, max_speech_positions=400)
    model = seeded(transformers.SpeechT5ForTextToSpeech, config, scale=0.5)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 100, (2, 7), generator=draw)
    return model, {"input_ids": ids, "speaker_embeddings": torch.randn(2, 16, generator=draw)}


@functools.cache
def vocoder():
    sizes = dict(model_in_dim=8, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4])
    config = transformers.SpeechT5HifiGanConfig(
        **sizes, resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3, 5]], sampling_rate=64
    )
    torch.manual_seed(0)
    return transformers.SpeechT5HifiGan(config).eval()


TRANSDUCERS = {
    "ParakeetForRNNT": "ParakeetRNNTConfig",
    "ParakeetForTDT": "ParakeetTDTConfig",
    "NemotronAsrStreamingForRNNT": "NemotronAsrStreamingConfig",
    "Nemotron3_5AsrForRNNT": "Nemotron3_5AsrConfig",
}


@functools.cache
def transducer(name):
    encoder = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    encoder |= dict(subsampling_conv_channels=8, num_mel_bins=16)
    ids = dict(vocab_size=12, blank_token_id=11, pad_token_id=10)
    kind = getattr(transformers, TRANSDUCERS[name])
    config = kind(decoder_hidden_size=16, num_decoder_layers=1, encoder_config=encoder, **ids)
    model = seeded(getattr(transformers, name), config)
    model.generation_config.decoder_start_token_id = 11
    if "TDT" in name:  # behind the tokens come the durations
        model.generation_config.suppress_tokens = list(range(12, 17))
    features = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(64) < torch.tensor([[64], [40]])).long()
    inputs = {"input_features": features, "attention_mask": mask}
    if name.startswith("Nemotron"):
        inputs["num_lookahead_tokens"] = 13
    return model, inputs | ({"prompt_ids": torch.tensor([0, 1])} if name.startswith("Nemotron3_5") else {})
