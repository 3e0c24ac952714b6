"""Streams on one model, interleaved in any way, give what each gives alone."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import prompt, tiny_model
from unspool import generate, generate_stream

ASKED = [
    {"max_new_tokens": 6, "do_sample": False},
    {"max_new_tokens": 8, "do_sample": True, "seed": 4, "num_return_sequences": 2},
    {"max_new_tokens": 5, "num_beams": 3},
]


def one(model, number):
    return generate_stream(model, **prompt(1 + number, 6 + number, seed=number), eos_token_id=None, **ASKED[number])


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba"])
@given(order=st.permutations([0] * 6 + [1] * 8 + [2] * 5))
@settings(max_examples=8, deadline=None)
def test_interleaved_on_one_thread(name, order):
    model = tiny_model(name)
    alone = [one(model, number).to().sequences for number in range(3)]
    streams = [one(model, number) for number in range(3)]
    for number in order:
        next(streams[number])
    for stream, expected in zip(streams, alone, strict=True):
        assert torch.equal(stream.result.sequences, expected)


def test_models_that_keep_state_on_themselves_keep_it_apart():
    model = tiny_model("recurrent_gemma")
    alone = [one(model, number).to().sequences for number in range(2)]
    streams = [one(model, number) for number in range(2)]
    for _ in zip(*streams, strict=False):
        pass
    for stream, expected in zip(streams, alone, strict=True):
        assert torch.equal(stream.to().sequences, expected)


def test_on_two_threads():
    model = tiny_model()
    alone = [one(model, number).to().sequences for number in range(2)]
    found = {}
    threads = [
        threading.Thread(target=lambda number=number: found.update({number: one(model, number).to().sequences}))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[number], alone[number]) for number in range(2))


def test_a_seed_makes_a_stream_independent_of_all_else_that_draws():
    model, found = tiny_model(), []
    for noise in (0, 5):
        stream = one(model, 1)
        for _ in stream:
            torch.rand(noise)
        found.append(stream.result.sequences)
    assert torch.equal(*found)


def test_nothing_carries_over_to_the_next_call():
    class Counts:
        def __init__(self):
            self.calls = 0

        def __call__(self, ids, scores):
            self.calls += 1
            return scores.roll(self.calls, dims=-1)

    model, processor = tiny_model(), Counts()
    first = generate(model, **prompt(), max_new_tokens=5, logits_processor=[processor])
    assert processor.calls == 5
    assert torch.equal(generate(model, **prompt(), max_new_tokens=5, logits_processor=[processor]), first)
