"""A model configured once: its streams are those of `generate_stream`, and nothing of one is seen in another."""

import pytest
import torch

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import Generator, generate, generate_stream
from unspool.errors import ArgumentError

SETTINGS = {
    "greedy": {"max_new_tokens": 5},
    "sampling": {"max_new_tokens": 5, "do_sample": True, "top_k": 7, "temperature": 1.3},
    "beams": {"max_new_tokens": 5, "num_beams": 3, "num_return_sequences": 2},
    "penalties": {"max_length": 12, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "drafts": {"max_new_tokens": 5, "prompt_lookup_num_tokens": 2},
}


@pytest.fixture(params=["llama", "t5", "mamba"])
def model(request):
    return tiny_model(request.param)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_stream_is_that_of_generate_stream(model, settings):
    if "prompt_lookup_num_tokens" in settings and model.config.model_type == "mamba":
        pytest.skip("no drafts for a recurrent state")
    generator = Generator(model, **settings)
    for rows in (1, 1) if "prompt_lookup_num_tokens" in settings else (1, 3, 2):
        torch.manual_seed(rows)
        expected = generate(model, **prompt(rows), **settings)
        torch.manual_seed(rows)
        assert torch.equal(generator.generate(**prompt(rows)), expected)


def test_settings_are_settled_once(monkeypatch):
    generator = Generator(tiny_model(), max_new_tokens=3)
    settled = []
    monkeypatch.setattr("unspool.bridge.generation_config", lambda *a, **k: settled.append(a))
    assert list(generator.stream(**prompt(2)))
    assert settled == []


def test_settings_of_one_stream_win_for_that_stream_only():
    model = tiny_model()
    generator = Generator(model, max_new_tokens=3)
    assert generator.generate(**prompt(1), max_new_tokens=1).shape[1] == prompt(1)["input_ids"].shape[1] + 1
    assert torch.equal(generator.generate(**prompt(1)), generate(model, **prompt(1), max_new_tokens=3))


def test_streams_of_one_object_go_on_beside_each_other():
    model = tiny_model()
    generator = Generator(model, max_new_tokens=6, do_sample=True)
    alone = [list(generate_stream(model, **prompt(1), max_new_tokens=6, do_sample=True, seed=s)) for s in (1, 2)]
    beside = zip(generator.stream(**prompt(1), seed=1), generator.stream(**prompt(1), seed=2), strict=True)
    for ours, theirs in zip(beside, zip(*alone, strict=True), strict=True):
        assert [int(step.tokens) for step in ours] == [int(step.tokens) for step in theirs]


def test_text_and_stop_strings_use_the_tokenizer_of_the_object():
    tokenizer = tiny_tokenizer()
    generator = Generator(tiny_model(), tokenizer=tokenizer, max_new_tokens=4)
    with generator.stream(**prompt(1)) as stream:
        chunks = list(stream.text())
    assert [id for chunk in chunks for id in chunk.ids] == stream.result.tokens[0].tolist()


@pytest.mark.parametrize(
    ("defaults", "named"),
    [
        ({"max_new_tokens": 2, "seed": 1}, "seed"),
        ({"input_ids": torch.ones(1, 2, dtype=torch.long)}, "tensor"),
        ({"max_new_token": 3}, "max_new_token"),
        ({"num_beams": 2, "temperature": -1.0, "do_sample": True}, "temperature"),
    ],
)
def test_wrong_settings_are_refused_when_the_object_is_made(defaults, named):
    with pytest.raises(ArgumentError, match=named):
        Generator(tiny_model(), **defaults)


def test_a_wrong_prompt_is_refused_at_the_call():
    generator = Generator(tiny_model(), max_new_tokens=3)
    with pytest.raises(ArgumentError, match="vocabulary"):
        generator.stream(torch.tensor([[10_000]]))
