"""Forwards made are steps taken; a prompt is read once, whatever the samples or beams; encoders run once."""

from __future__ import annotations

import pytest

from tiny import prompt, tiny_model
from unspool import generate_stream


@pytest.fixture
def counted():
    """A model, and the input shapes of the forwards it has made."""

    def make(name="llama"):
        model, shapes = tiny_model(name), []
        key = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"

        def note(module, args, kwargs):
            shapes.append(tuple(kwargs[key].shape))

        model.register_forward_pre_hook(note, with_kwargs=True)
        return model, shapes

    return make


@pytest.mark.parametrize("name", ["llama", "mamba", "t5", "rwkv"])
@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "num_return_sequences": 2}, {"use_cache": False}])
def test_each_step_costs_one_forward(counted, name, settings):
    model, shapes = counted(name)
    for number, step in enumerate(generate_stream(model, **prompt(2), max_new_tokens=5, **settings), start=1):
        assert len(shapes) == number
        assert step.forward == number - 1


def test_nothing_runs_before_the_first_pull(counted):
    model, shapes = counted()
    generate_stream(model, **prompt(), max_new_tokens=5)
    assert shapes == []


@pytest.mark.parametrize("leave", ["break", "close", "with", "drop"])
def test_nothing_runs_after_leaving(counted, leave):
    model, shapes = counted()
    stream = generate_stream(model, **prompt(), max_new_tokens=50)
    if leave == "with":
        with stream:
            next(stream)
            next(stream)
    else:
        next(stream)
        next(stream)
        if leave == "close":
            stream.close()
            assert list(stream) == []
        elif leave == "drop":
            del stream
    assert len(shapes) == 2


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba", "t5"])
@pytest.mark.parametrize("settings", [{"do_sample": True, "num_return_sequences": 4}, {"num_beams": 4}])
def test_prefill_has_one_row_per_prompt(counted, name, settings):
    model, shapes = counted(name)
    for _ in generate_stream(model, **prompt(2), max_new_tokens=3, **settings):
        pass
    assert [rows for rows, _ in shapes] == [2, 8, 8]


def test_the_encoder_runs_once_with_one_row_per_prompt():
    model, rows = tiny_model("t5"), []
    model.get_encoder().register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    generate_stream(model, **prompt(2), max_new_tokens=4, num_beams=3).to()
    assert rows == [2]
