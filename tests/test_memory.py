"""Memory is flat in the steps that the consumer drops, and free when the stream is left, without the collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tiny import prompt, tiny_model
from unspool import generate_stream
from unspool.errors import UnspoolError

SETTINGS = {
    "greedy": {},
    "samples": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3},
    "look-up": {"prompt_lookup_num_tokens": 2},
}


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def live_tensors():
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


def test_dropped_steps_leave_nothing_behind_with_all_outputs_on():
    model = tiny_model(attention="eager")
    counts = []
    asked = {"output_hidden_states": True, "output_attentions": True, "return_dict_in_generate": True}
    for step in generate_stream(model, **prompt(2), max_new_tokens=40, eos_token_id=None, **asked):
        del step
        counts.append(live_tensors())
    assert counts[-2] <= counts[3]  # the last step has books of its own


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_cache_is_free_when_the_stream_is_closed(kind):
    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=20, eos_token_id=None, **SETTINGS[kind])
    next(stream)
    cache = weakref.ref(stream._source.state.carried.cache)
    stream.close()
    assert cache() is None
    assert stream.result.steps == 1


@pytest.mark.parametrize("kind", SETTINGS)
def test_everything_is_free_when_the_stream_is_dropped(kind):
    model, inputs = tiny_model(), prompt()
    before = live_tensors()
    stream = generate_stream(model, **inputs, max_new_tokens=20, eos_token_id=None, **SETTINGS[kind])
    next(stream)
    next(stream)
    del stream
    assert live_tensors() == before


def test_the_cache_is_free_after_an_error_though_the_error_is_kept():
    class Fails:
        def __call__(self, ids, scores):
            if ids.shape[1] > 8:
                raise UnspoolError("enough")
            return scores

    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=20, logits_processor=[Fails()])
    next(stream)
    cache = weakref.ref(stream._source.state.carried.cache)
    with pytest.raises(UnspoolError):
        list(stream)
    assert cache() is None


@pytest.mark.parametrize("name", ["llama", "bloom", "t5"])
def test_a_kept_step_keeps_only_itself_alive(name):
    stream = generate_stream(tiny_model(name), **prompt(1, 200), max_new_tokens=2)
    step = next(stream)
    for tensor in (step.tokens, step.logits, step.scores, step.outputs.logits):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
