"""Every class of transformers with a `generate` of its own is run, refused, or known to be missing."""

import importlib

import pytest
import torch
import transformers

from unspool import generate_stream
from unspool.errors import UnsupportedError
from unspool.families.refused import refusal
from unspool.families.registry import particular_family
from unspool.own_loop import can_suspend
from zoo.classes import generators, sources

MISSING: dict[str, str] = {}
"""What isn't streamed yet, and what it would take. It is refused at the call."""

OWN = sorted(name for name, own in generators().items() if own is not None)


def blank(name):
    """An instance without weights: enough to ask what kind of model it is."""
    kind = getattr(importlib.import_module(sources()[name].module), name)
    return kind.__new__(kind)


@pytest.mark.parametrize("name", OWN)
def test_a_class_with_a_generate_of_its_own_is_run_or_refused_or_known_to_be_missing(name):
    standing = [refusal(blank(name)) is not None, name in MISSING]
    assert sum(standing) <= 1
    if not any(standing):
        assert can_be_run(name), f"{name} is new: give it a family, refuse it on purpose, or list it as missing"


def can_be_run(name):
    return particular_family(blank(name)) is not None or can_suspend(blank(name))


def test_nothing_is_listed_as_missing_that_can_be_run():
    assert [name for name in MISSING if name in OWN and can_be_run(name)] == []


def test_all_classes_that_generate_are_found():
    found = generators()
    assert found["LlamaForCausalLM"] is None
    assert found["WhisperForConditionalGeneration"].name == "WhisperGenerationMixin"
    assert "LlamaModel" not in found


def forecaster():
    config = transformers.PatchTSTConfig(
        context_length=8, patch_length=4, patch_stride=4, num_hidden_layers=1, d_model=8, num_attention_heads=2
    )
    return transformers.PatchTSTForPrediction(config)


def ctc():
    encoder = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    encoder |= dict(subsampling_conv_channels=8, num_mel_bins=16)
    return transformers.ParakeetForCTC(transformers.ParakeetCTCConfig(vocab_size=12, encoder_config=encoder))


@pytest.mark.parametrize(
    ("make", "inputs", "why"),
    [
        (forecaster, {"past_values": torch.zeros(1, 8, 1)}, "time series"),
        (ctc, {"input_features": torch.zeros(1, 32, 16)}, "CTC"),
    ],
    ids=["time series", "CTC"],
)
def test_what_has_no_steps_is_refused_at_the_call_with_what_to_call_instead(make, inputs, why):
    with pytest.raises(UnsupportedError, match=why) as caught:
        generate_stream(make(), **inputs)
    assert "model.generate(...)" in str(caught.value)
