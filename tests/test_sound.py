"""Sound while it is being made: frames become samples, piece by piece, and joined they are what all at once gives."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import soundfile
import torch

from tiny import prompt, tiny_model
from unspool import generate_stream
from unspool.errors import ArgumentError
from unspool.events import Frames, Phase
from unspool.sinks import AudioSink
from unspool.sound import samples
from zoo.sound import bark, csm, musicgen, musicgen_decoder
from zoo.speech import speech_t5, vocoder

LONG = dict(max_new_tokens=60, do_sample=True, seed=1)


def pieces(stream, *args, **how):
    return list(samples(stream, *args, **how))


def joined(chunks):
    return torch.cat([chunk.samples for chunk in chunks], dim=-1)


def same(found, expected):
    expected = expected.detach()
    return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("chunk", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("melody", [False, True], ids=["musicgen", "melody"])
def test_the_pieces_of_musicgen_joined_are_the_whole(melody, chunk):
    model, inputs = musicgen(melody=melody)
    stream = generate_stream(model, **inputs, **LONG)
    chunks = pieces(stream, model, chunk=chunk)
    assert len(chunks) > 2
    assert same(joined(chunks), stream.result.output)
    assert [chunk.start for chunk in chunks] == np.cumsum([0, *(c.samples.shape[-1] for c in chunks[:-1])]).tolist()
    assert chunks[0].sampling_rate == 64


def test_pieces_come_while_frames_are_made():
    model, inputs = musicgen()
    stream = generate_stream(model, **inputs, **LONG)
    reading = samples(stream, model, chunk=0.25)
    next(reading)
    assert stream.result.steps < 30


@pytest.mark.parametrize("chunk", [0.0, 1.0])
def test_the_pieces_of_csm_joined_are_what_its_codec_makes_of_all_codes(chunk):
    model, inputs = csm()
    stream = generate_stream(model, **inputs, max_new_tokens=40, do_sample=True, seed=1)
    codes = []
    events = (codes.append(event) or event for event in stream)
    chunks = pieces(events, model, chunk=chunk)
    frames = torch.cat([step.frames for step in codes], dim=-1)
    assert same(joined(chunks), model.codec_model.decode(frames).audio_values)


def test_a_context_of_enough_frames_gives_the_same_sound_of_a_codec_without_memory():
    model, inputs = csm()
    whole, short = (
        joined(pieces(generate_stream(model, **inputs, max_new_tokens=60, seed=1), model, chunk=0.1, context=context))
        for context in (None, 40)
    )
    assert same(short, whole)


def test_speech_t5_is_made_sound_by_a_vocoder():
    model, inputs = speech_t5(1)
    net = vocoder()
    stream = generate_stream(model, **inputs, threshold=1.99, maxlenratio=8.0, seed=1)
    steps = []
    events = (steps.append(step) or step for step in stream)
    chunks = pieces(events, decode=lambda frames: net(frames.mT)[:, None], sampling_rate=64, chunk=0.2)
    whole = net(torch.cat([step.frames for step in steps], dim=-1).mT)[:, None]
    assert len(chunks) > 2
    assert same(joined(chunks), whole)


def test_rows_of_csm_are_cut_where_they_end():
    model, inputs = csm()
    steps = list(generate_stream(model, **inputs, max_new_tokens=12, do_sample=True, seed=1))
    cut = [step for step in steps if step.index < 12]
    for step in cut[7:]:
        step.sounding[1] = False
    chunks = pieces(cut, model, chunk=0.1)
    hop = joined(chunks).shape[-1] // 12
    assert chunks[-1].lengths == (12 * hop, 7 * hop)


# ------------------------------------------------------------------------------------------------------------- Bark


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True, "semantic_temperature": 0.8}])
def test_bark_streams_its_three_parts_and_comes_to_its_own_sound(how):
    model, inputs = bark()
    torch.manual_seed(0)
    expected = model.generate(**inputs, **how)
    torch.manual_seed(0)
    stream = generate_stream(model, **inputs, **how)
    events = list(stream.events())
    parts = [event.name for event in events if isinstance(event, Phase)]
    assert parts == ["semantic", "coarse_acoustics", "fine_acoustics"]
    assert torch.equal(stream.result.output, expected)
    (frames,) = (event.frames for event in events if isinstance(event, Frames))
    assert frames.shape[:2] == (2, 4)
    assert same(joined(pieces(events, model))[:, 0], expected)


def test_steps_of_bark_are_numbered_on_through_its_parts():
    model, inputs = bark()
    steps = list(generate_stream(model, **inputs, do_sample=False))
    assert [step.index for step in steps] == list(range(len(steps)))


# ------------------------------------------------------------------------------------------------------------- files


def test_a_file_of_one_row_holds_the_sound(tmp_path):
    model, inputs = musicgen()
    one = {name: value[:1] for name, value in inputs.items()}
    sink = AudioSink(tmp_path / "song.wav", model, chunk=0.25)
    result = generate_stream(model, **one, **LONG).to(sink)
    heard, rate = soundfile.read(tmp_path / "song.wav", dtype="float32")
    assert rate == 64
    assert same(torch.from_numpy(heard)[None, None], result.output)
    assert sink.seconds == pytest.approx(len(heard) / 64)


def test_each_row_has_a_file(tmp_path):
    model, inputs = musicgen()
    result = generate_stream(model, **inputs, **LONG).to(AudioSink(tmp_path / "song.wav", model))
    for row in range(2):
        heard, _ = soundfile.read(tmp_path / f"song-{row}.wav", dtype="float32")
        assert same(torch.from_numpy(heard)[None], result.output[row])


def test_a_file_object_takes_one_row():
    model, inputs = musicgen()
    one, file = {name: value[:1] for name, value in inputs.items()}, io.BytesIO()
    result = generate_stream(model, **one, **LONG).to(AudioSink(file, model))
    file.seek(0)
    heard, _ = soundfile.read(file, dtype="float32")
    assert heard.shape[0] == result.output.shape[-1]
    with pytest.raises(ArgumentError, match="2 rows"):
        generate_stream(model, **inputs, **LONG).to(AudioSink(io.BytesIO(), model))


def test_what_was_made_before_an_error_is_in_the_file(tmp_path):
    model, inputs = csm()
    one = {name: value[:1] for name, value in inputs.items()}
    stream = generate_stream(model, **one, max_new_tokens=40, seed=1, sinks=[AudioSink(tmp_path / "said.wav", model)])
    for _ in stream.steps(21):
        pass
    with contextlib.suppress(ZeroDivisionError), stream:
        raise ZeroDivisionError
    heard, _ = soundfile.read(tmp_path / "said.wav")
    assert len(heard) == 21 * model.codec_model.config.frame_size


def test_a_model_without_a_codec_is_refused_unless_one_is_given():
    model, ids = musicgen_decoder()
    with pytest.raises(ArgumentError, match="no codec of its own; pass decode="):
        AudioSink("song.wav", model)
    with pytest.raises(ArgumentError, match="sampling_rate= is missing"):
        AudioSink("song.wav", model, decode=lambda frames: frames[:, :1].float())
    with pytest.raises(ArgumentError, match="Without a model, pass decode="):
        AudioSink("song.wav")
    frames = pieces(generate_stream(model, ids, **LONG), decode=lambda it: it[:, :1].float(), sampling_rate=4)
    assert joined(frames).shape[1] == 1


@pytest.mark.parametrize("wrong", [{"chunk": -1}, {"context": -1}, {"context": 1.5}])
def test_arguments_that_are_wrong_are_refused(wrong):
    model, _ = csm()
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        AudioSink("song.wav", model, **wrong)


def test_a_stream_of_text_makes_no_sound(tmp_path):
    stream = generate_stream(tiny_model(), **prompt(1, 5), max_new_tokens=3)
    assert pieces(stream, decode=lambda it: it, sampling_rate=4) == []
