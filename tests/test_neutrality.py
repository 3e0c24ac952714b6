"""What belongs to the caller is the same before, between and after steps."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch

from tiny import prompt, tiny_model
from unspool import generate_stream

MODES = {
    "gradients on": torch.enable_grad,
    "gradients off": torch.no_grad,
    "inference": torch.inference_mode,
    "nothing": contextlib.nullcontext,
}


def ambient():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{}, {"do_sample": True}, {"num_beams": 2}], ids=["greedy", "sample", "beams"])
def test_the_callers_modes_are_its_own_between_steps(mode, settings):
    model = tiny_model()
    with MODES[mode]():
        before = ambient()
        streams = [generate_stream(model, **prompt(), max_new_tokens=4, **settings) for _ in range(2)]
        for _ in zip(*streams, strict=True):
            assert ambient() == before
        assert ambient() == before


@pytest.mark.parametrize("mode", MODES)
def test_what_is_yielded_needs_no_gradient_and_is_no_inference_tensor(mode):
    model = tiny_model().requires_grad_(True)
    with MODES[mode]():
        step = next(generate_stream(model, **prompt(), max_new_tokens=4, output_hidden_states=True))
    for tensor in (step.tokens, step.logits, step.scores, *step.outputs.hidden_states):
        assert not tensor.requires_grad
        assert not tensor.is_inference()


def test_a_seed_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    generate_stream(tiny_model(), **prompt(2), max_new_tokens=5, do_sample=True, seed=3).to()
    assert torch.equal(torch.get_rng_state(), before)


def test_configs_arguments_and_training_mode_are_unchanged():
    from transformers import GenerationConfig

    model = tiny_model().train()
    given, kwargs = GenerationConfig(max_new_tokens=3, pad_token_id=0), prompt(2)
    before = copy.deepcopy((model.generation_config.to_dict(), model.config.to_dict(), given.to_dict(), kwargs))
    generate_stream(model, generation_config=given, **kwargs).to()
    after = (model.generation_config.to_dict(), model.config.to_dict(), given.to_dict(), kwargs)
    assert before[:3] == after[:3]
    assert all(torch.equal(before[3][name], after[3][name]) for name in kwargs)
    assert model.training


@pytest.mark.parametrize("settings", [{}, {"cache_implementation": "static"}, {"num_beams": 2}])
@pytest.mark.parametrize("name", ["llama", "recurrent_gemma"])
def test_nothing_is_kept_on_the_model(name, settings):
    model = tiny_model(name)
    before = [(module, dict(vars(module))) for module in model.modules()]
    stream = generate_stream(model, **prompt(), max_new_tokens=4, **settings)
    next(stream)
    for module, attributes in before:
        assert vars(module).keys() == attributes.keys()
        assert all(vars(module)[name] is value for name, value in attributes.items())
    stream.close()


def test_a_cache_given_by_the_caller_is_extended_in_place():
    from transformers import DynamicCache

    model, cache = tiny_model(), DynamicCache()
    stream = generate_stream(model, **prompt(), max_new_tokens=3, cache=cache)
    result = stream.to()
    assert result.cache is cache
    assert cache.get_seq_length() == result.sequences.shape[1] - 1
