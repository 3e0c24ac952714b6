"""Transducers: every step tells at which moment of the sound its token was heard."""

import pytest
import torch
import transformers

from tiny import tiny_tokenizer
from unspool import generate, generate_stream
from zoo.speech import TRANSDUCERS, transducer

here = [name for name in TRANSDUCERS if hasattr(transformers, name)]
names = pytest.mark.parametrize("name", here)
pytestmark = pytest.mark.skipif(not here, reason="not in this release")


@names
def test_the_stream_comes_to_what_generate_returns(name):
    model, inputs = transducer(name)
    expected = model.generate(**inputs, max_new_tokens=120)
    stream = generate_stream(model, **inputs, max_new_tokens=120)
    tokens = torch.stack([step.tokens for step in stream], dim=1)
    assert torch.equal(tokens, expected.sequences[:, 1:])
    assert torch.equal(stream.result.output.sequences, expected.sequences)
    assert torch.equal(generate(model, **inputs, max_new_tokens=120).durations, expected.durations)


@names
def test_steps_tell_how_far_they_move_on_and_where_they_are(name):
    model, inputs = transducer(name)
    expected = model.generate(**inputs, max_new_tokens=120).durations[:, 1:]
    steps = list(generate_stream(model, **inputs, max_new_tokens=120))
    assert torch.equal(torch.stack([step.duration for step in steps], dim=1), expected)
    before = expected.cumsum(1) - expected
    assert torch.equal(torch.stack([step.frame for step in steps], dim=1), before)
    assert torch.allclose(torch.stack([step.seconds for step in steps], dim=1), before.double() * 0.08)


@names
def test_streams_go_on_beside_each_other_and_leave_nothing_on_the_model(name):
    model, inputs = transducer(name)
    expected = model.generate(**inputs, max_new_tokens=120)
    before = set(vars(model))
    streams = [generate_stream(model, **inputs, max_new_tokens=120) for _ in range(2)]
    for _ in zip(*streams, strict=True):
        pass
    assert all(torch.equal(stream.result.output.durations, expected.durations) for stream in streams)
    assert set(vars(model)) == before


def test_blanks_have_no_text():
    model, inputs = transducer("ParakeetForRNNT")
    blank = model.config.blank_token_id
    stream = generate_stream(model, **inputs, max_new_tokens=120, sequence_bias={(blank,): 0.3})
    ids = [[], []]
    texts = ["", ""]
    for chunk in stream.text(tiny_tokenizer(), skip_special_tokens=False):
        texts[chunk.row] += chunk.text
        ids[chunk.row] += chunk.ids
    assert any(blank in row for row in stream.result.tokens.tolist())
    for row, text in enumerate(texts):
        said = [token for token in ids[row] if token != blank]
        assert text.split() == tiny_tokenizer().decode(said, skip_special_tokens=False).split()
