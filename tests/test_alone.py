"""Models whose loop is their own in every part: spectrograms, and blocks of text that are revised."""

from __future__ import annotations

import io

import pytest
import torch
import transformers

from terminals import Terminal
from tiny import tiny_tokenizer
from unspool import FinishReason, generate, generate_stream
from unspool.errors import ArgumentError
from unspool.events import Draft
from unspool.sinks import RecordSink, TerminalSink, TextSink, replay
from zoo.diffusion import diffusion_gemma
from zoo.speech import speech_t5, vocoder

# ----------------------------------------------------------------------------------------------------- spectrograms

SPEECH = {
    "ended by the model": dict(maxlenratio=4.0),
    "rows of different lengths": dict(threshold=0.9, maxlenratio=6.0),
    "as long as may be": dict(threshold=1.99, maxlenratio=8.0),
    "at least so long": dict(minlenratio=2.0, maxlenratio=6.0),
}
speech = pytest.mark.parametrize("how", SPEECH.values(), ids=SPEECH)


def joined(stream):
    return torch.cat([step.frames for step in stream], dim=-1)


@speech
@pytest.mark.parametrize("reduction", [1, 2])
def test_frames_of_speech_t5_are_the_spectrogram(how, reduction):
    model, inputs = speech_t5(reduction)
    torch.manual_seed(0)
    expected, lengths = model.generate(**inputs, **how, return_output_lengths=True)
    torch.manual_seed(0)
    stream = generate_stream(model, **inputs, **how, return_output_lengths=True)
    assert torch.allclose(joined(stream).mT, expected, atol=1e-5)
    assert stream.result.output[1] == lengths
    assert torch.equal(stream.result.output[0], expected)


def test_a_frame_comes_as_soon_as_what_smooths_it_has_all_it_looks_at():
    model, inputs = speech_t5(1)
    counts = [step.frames.shape[-1] for step in generate_stream(model, **inputs, threshold=1.99, maxlenratio=4.0)]
    ahead = model.config.speech_decoder_postnet_layers * (model.config.speech_decoder_postnet_kernel // 2)
    assert counts == [0] * ahead + [1] * (28 - ahead - 1) + [1 + ahead]


def test_the_step_at_which_a_row_ends_says_so():
    model, inputs = speech_t5(1)
    stream = generate_stream(model, **inputs, threshold=0.9, maxlenratio=6.0)
    ended = {row: finish.reason for step in stream for row, finish in step.ended.items()}
    assert ended == {0: FinishReason.MAX_LENGTH, 1: FinishReason.EOS}
    assert [finish.reason for finish in stream.result.finishes] == [FinishReason.MAX_LENGTH, FinishReason.EOS]


def test_speech_t5_with_a_vocoder_gives_the_waveform_and_the_model_is_left_as_it_was():
    model, inputs = speech_t5(1)
    how = dict(maxlenratio=4.0, threshold=1.99, vocoder=vocoder())
    torch.manual_seed(0)
    expected = model.generate(**inputs, **how)
    torch.manual_seed(0)
    assert torch.equal(generate(model, **inputs, **how), expected)
    assert not model.speech_decoder_postnet.prob_out._forward_hooks


def test_two_streams_of_speech_t5_go_on_beside_each_other_and_beside_its_own_generate():
    model, inputs = speech_t5(1)
    model.eval()
    streams = [generate_stream(model, **inputs, maxlenratio=4.0, threshold=1.99, seed=5) for _ in range(2)]
    frames = [[], []]
    for steps in zip(*streams, strict=True):
        model.generate(**inputs, maxlenratio=1.0)
        for kept, step in zip(frames, steps, strict=True):
            kept.append(step.frames)
    first, second = (torch.cat(kept, dim=-1) for kept in frames)
    assert torch.equal(first, second)
    assert first.shape[-1] == 28


def test_an_argument_that_the_class_does_not_take_is_refused_at_the_call():
    model, inputs = speech_t5(1)
    with pytest.raises(ArgumentError, match=r"num_beams.*threshold"):
        generate_stream(model, **inputs, num_beams=4)
    with pytest.raises(ArgumentError, match="logits_processor"):
        generate_stream(model, **inputs, logits_processor=transformers.LogitsProcessorList([print]))


# ------------------------------------------------------------------------------------------------------------ blocks

needs_diffusion = pytest.mark.skipif(
    not hasattr(transformers, "DiffusionGemmaForBlockDiffusion"), reason="not in this release"
)
BLOCKS = {
    "to the length": dict(max_new_tokens=8, max_denoising_steps=6),
    "to an end": dict(max_new_tokens=12, max_denoising_steps=6, eos_token_id=list(range(60)), pad_token_id=0),
    "not padded": dict(max_new_tokens=12, max_denoising_steps=6, eos_token_id=[5]),
    "settled early": dict(max_new_tokens=8, max_denoising_steps=12, stability_threshold=1, confidence_threshold=9.0),
}
blocks = pytest.mark.parametrize("how", BLOCKS.values(), ids=BLOCKS)


@needs_diffusion
@blocks
def test_the_stream_of_blocks_comes_to_what_generate_returns(how):
    model, inputs = diffusion_gemma()
    torch.manual_seed(0)
    expected = model.generate(**inputs, **how)
    torch.manual_seed(0)
    stream = generate_stream(model, **inputs, **how)
    tokens = torch.stack([step.tokens for step in stream], dim=1)
    assert torch.equal(tokens, expected.sequences[:, 6:])
    assert torch.equal(stream.result.sequences, expected.sequences)
    assert torch.equal(stream.result.output.tokens_per_forward, expected.tokens_per_forward)


@needs_diffusion
@blocks
def test_drafts_are_those_of_transformers_streamer_and_the_last_is_the_block(how):
    model, inputs = diffusion_gemma()

    class Heard(transformers.generation.streamers.BaseStreamer):
        drafts, puts = [], []

        def put(self, value):
            self.puts.append(value)

        def put_draft(self, value):
            self.drafts.append(value)

        def end(self):
            pass

    one = {"input_ids": inputs["input_ids"][:1]}
    torch.manual_seed(0)
    model.generate(**one, **how, streamer=Heard())
    torch.manual_seed(0)
    events = list(generate_stream(model, **one, **how).events())
    drafts = [event for event in events if isinstance(event, Draft)]
    assert [draft.ids.tolist() for draft in drafts] == [value.tolist() for value in Heard.drafts]
    assert [draft.round for draft in drafts[:2]] == [0, 1]
    assert drafts[0].start == 6


@needs_diffusion
def test_the_logits_of_a_block_are_those_of_its_last_revision():
    model, inputs = diffusion_gemma()
    steps = list(
        generate_stream(model, **inputs, max_new_tokens=4, max_denoising_steps=5, confidence_threshold=1e-9, seed=1)
    )
    for place, step in enumerate(steps):
        assert torch.equal(step.logits, step.outputs.logits[:, place].float())
        assert torch.equal(step.tokens, step.scores.argmax(-1))
        assert step.more == 3 - place


@needs_diffusion
def test_how_rows_of_blocks_end():
    model, inputs = diffusion_gemma()
    stream = generate_stream(model, **inputs, **BLOCKS["to the length"])
    stream.to()
    assert {finish.reason for finish in stream.result.finishes} == {FinishReason.MAX_LENGTH}
    stream = generate_stream(model, **inputs, **BLOCKS["to an end"])
    ended = {row: (step.index, finish.reason) for step in stream for row, finish in step.ended.items()}
    assert {reason for _, reason in ended.values()} == {FinishReason.EOS}


@needs_diffusion
def test_a_seed_makes_blocks_the_same_again_and_leaves_torchs_own_randomness_alone():
    model, inputs = diffusion_gemma()
    before = torch.get_rng_state()
    first, second = (generate(model, **inputs, **BLOCKS["to the length"], seed=3).sequences for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@needs_diffusion
def test_a_terminal_shows_drafts_dim_and_the_text_when_it_is_certain():
    model, inputs = diffusion_gemma()
    terminal = Terminal(60, 10)
    stream = generate_stream(model, inputs["input_ids"][:1], **BLOCKS["to the length"], seed=1)
    stream.through(TerminalSink(terminal.console, tokenizer=tiny_tokenizer()))
    for event in stream.events():
        if isinstance(event, Draft):
            assert tiny_tokenizer().decode(event.ids[0].tolist(), skip_special_tokens=True)[:3] in terminal.shown[0]
            assert "\x1b[2m" in terminal.getvalue()
    said = tiny_tokenizer().decode(stream.result.tokens[0].tolist(), skip_special_tokens=True)
    assert "".join("".join(terminal.rows).split()) == "".join(said.split())


@needs_diffusion
def test_a_file_gets_the_certain_text_only(tmp_path):
    model, inputs = diffusion_gemma()
    file = io.StringIO()
    sinks = [TextSink(file, tokenizer=tiny_tokenizer()), RecordSink(tmp_path / "blocks")]
    result = generate_stream(model, inputs["input_ids"][:1], **BLOCKS["to the length"], seed=1).to(*sinks)
    said = tiny_tokenizer().decode(result.tokens[0].tolist(), skip_special_tokens=True)
    assert "".join(file.getvalue().split()) == "".join(said.split())
    assert any(isinstance(event, Draft) for event in replay(tmp_path / "blocks").events())


@needs_diffusion
def test_panels_show_the_drafts_of_their_rows():
    model, inputs = diffusion_gemma()
    terminal = Terminal(60, 20)
    stream = generate_stream(model, **inputs, **BLOCKS["to the length"], seed=1)
    for event in stream.through(TerminalSink(terminal.console, tokenizer=tiny_tokenizer())).events():
        if isinstance(event, Draft):
            for row in event.ids.tolist():
                assert tiny_tokenizer().decode(row, skip_special_tokens=True)[:3] in "".join(terminal.shown)
