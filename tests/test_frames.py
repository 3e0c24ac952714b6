"""Models that make sound: every step shows the frames it completed, and joined they are what `generate()` returns."""

import pytest
import torch
import transformers

from unspool import bridge, generate, generate_stream
from zoo.sound import csm, dia, musicgen, musicgen_decoder, pocket_tts


def joined(stream):
    return torch.cat([step.frames for step in stream if step.frames is not None], dim=-1)


HOW = {"greedy": {"do_sample": False}, "sampling": {"do_sample": True}}
how = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@how
@pytest.mark.parametrize("guidance", [None, 3.0], ids=["alone", "guided"])
@pytest.mark.parametrize("melody", [False, True], ids=["musicgen", "melody"])
def test_the_sound_of_musicgen_is_that_of_its_own_generate(how, guidance, melody):
    model, inputs = musicgen(melody=melody)
    how = {**how, "max_new_tokens": 9, "guidance_scale": guidance}
    torch.manual_seed(3)
    theirs = model.generate(**inputs, **how)
    torch.manual_seed(3)
    assert torch.equal(generate(model, **inputs, **how), theirs)


@how
def test_frames_of_musicgen_have_no_delay_and_decode_to_the_sound(how):
    model, inputs = musicgen()
    torch.manual_seed(3)
    sound = model.generate(**inputs, **how, max_new_tokens=9)
    torch.manual_seed(3)
    frames = joined(generate_stream(model, **inputs, **how, max_new_tokens=9))
    assert frames.shape == (2, model.decoder.num_codebooks, 9 + 1 - model.decoder.num_codebooks)
    decoded = model.audio_encoder.decode(frames[None], audio_scales=[None] * 2).audio_values
    assert torch.allclose(decoded, sound, atol=1e-5)


def test_a_frame_of_musicgen_comes_as_soon_as_its_last_codebook_is_there():
    model, inputs = musicgen()
    counts = [step.frames.shape[-1] for step in generate_stream(model, **inputs, max_new_tokens=9, do_sample=False)]
    assert counts == [0, 0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.skipif(bridge.CACHE == "past_key_values", reason="the decoder's own generate() fails in this release")
@how
@pytest.mark.parametrize("channels", [1, 2], ids=["mono", "stereo"])
def test_frames_of_the_bare_decoder_are_its_codes(how, channels):
    model, ids = musicgen_decoder(channels)
    torch.manual_seed(3)
    codes = model.generate(ids, **how, max_new_tokens=9)
    torch.manual_seed(3)
    assert torch.equal(joined(generate_stream(model, ids, **how, max_new_tokens=9)), codes)


@how
def test_frames_of_csm_are_its_codes(how):
    model, inputs = csm()
    torch.manual_seed(3)
    codes = model.generate(**inputs, **how, max_new_tokens=6)
    torch.manual_seed(3)
    frames = joined(generate_stream(model, **inputs, **how, max_new_tokens=6))
    given = codes.shape[1] - frames.shape[-1]
    assert torch.equal(frames.mT, codes[:, given:])


@pytest.mark.skipif(not hasattr(transformers, "PocketTTSConfig"), reason="not in this release")
@how
def test_frames_of_pocket_tts_are_its_latents(how):
    model, inputs = pocket_tts()
    how = {**how, "max_new_tokens": 6, "return_dict_in_generate": True, "eos_threshold": 0.0, "frames_after_eos": 1}
    torch.manual_seed(3)
    latents = model.generate(**inputs, **how, min_frames_before_eos=2).audio_latents
    torch.manual_seed(3)
    frames = joined(generate_stream(model, **inputs, **how, min_frames_before_eos=2))
    assert torch.allclose(frames.mT, latents)


@how
def test_codes_of_dia_are_those_of_its_own_generate(how):
    model, inputs = dia()
    torch.manual_seed(3)
    theirs = model.generate(**inputs, **how, max_new_tokens=8)
    torch.manual_seed(3)
    stream = generate_stream(model, **inputs, **how, max_new_tokens=8)
    assert len(list(stream)) > 1
    assert torch.equal(stream.result.output, theirs)


def test_a_loop_of_the_models_own_leaves_the_model_as_it_was():
    model, inputs = csm()
    before = set(vars(model))
    next(generate_stream(model, **inputs, max_new_tokens=4))
    assert set(vars(model)) == before
    assert type(model) is transformers.CsmForConditionalGeneration


def test_two_streams_of_a_loop_of_the_models_own_go_on_beside_each_other():
    model, inputs = csm()
    alone = generate(model, **inputs, max_new_tokens=5, do_sample=False)
    streams = [generate_stream(model, **inputs, max_new_tokens=5, do_sample=False) for _ in range(2)]
    for _ in zip(*streams, strict=True):
        pass
    assert all(torch.equal(stream.result.sequences, alone) for stream in streams)
