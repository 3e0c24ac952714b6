"""Models that look at images: the image is looked at once, however many texts are made of it."""

import pytest
import torch

from unspool import generate, generate_stream
from zoo.vision import llava, qwen2_vl

MODELS = {"llava": llava, "qwen2_vl": qwen2_vl}
METHODS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
}
SEVERAL = {"beams": {"num_beams": 4}, "samples": {"do_sample": True, "num_return_sequences": 4}}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model_and_inputs(request):
    return request.param()


def tower(model):
    inner = model.model
    return inner.visual if hasattr(inner, "visual") else inner.vision_tower


@pytest.mark.parametrize("how", METHODS.values(), ids=METHODS)
def test_texts_are_those_of_generate(model_and_inputs, how):
    model, inputs = model_and_inputs
    torch.manual_seed(3)
    theirs = model.generate(**inputs, **how, max_new_tokens=6)
    torch.manual_seed(3)
    assert torch.equal(generate(model, **inputs, **how, max_new_tokens=6), theirs)


@pytest.mark.parametrize("how", SEVERAL.values(), ids=SEVERAL)
def test_the_image_and_the_prompt_are_read_once_for_all_beams_and_samples(model_and_inputs, how):
    model, inputs = model_and_inputs
    looked, read = [], []
    counting = [
        tower(model).register_forward_hook(lambda module, given, made: looked.append(1)),
        model.model.language_model.register_forward_hook(lambda module, given, made: read.append(made[0].shape[:2])),
    ]
    with generate_stream(model, **inputs, **how, max_new_tokens=4) as stream:
        steps = list(stream)
    for hook in counting:
        hook.remove()
    rows, length = inputs["input_ids"].shape
    assert len(looked) == 1
    assert read == [(rows, length)] + [(4 * rows, 1)] * (len(steps) - 1)


def test_the_models_own_offsets_of_positions_are_not_shared_between_streams():
    model, inputs = qwen2_vl()
    alone = generate(model, **inputs, max_new_tokens=5)
    text = {"input_ids": inputs["input_ids"][:, -3:], "attention_mask": inputs["attention_mask"][:, -3:]}
    other = generate(model, **text, max_new_tokens=5)
    streams = generate_stream(model, **inputs, max_new_tokens=5), generate_stream(model, **text, max_new_tokens=5)
    for _ in zip(*streams, strict=True):
        pass
    assert torch.equal(streams[0].result.sequences, alone)
    assert torch.equal(streams[1].result.sequences, other)
