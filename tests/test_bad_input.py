"""Wrong arguments raise at the call, and say which, what was given, and what would do."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, DynamicCache

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate_stream, prefill
from unspool.errors import ArgumentError, UnsupportedError

IDS = prompt(2)["input_ids"]
WRONG = {
    "an empty prompt": ({"input_ids": torch.empty(1, 0, dtype=torch.long)}, "prompt is empty"),
    "no prompt and no bos": ({"bos_token_id": None}, "bos_token_id"),
    "an id beyond the vocabulary": ({"input_ids": torch.tensor([[5, 160]])}, "160.*vocabulary of 160"),
    "a negative id": ({"input_ids": torch.tensor([[5, -1]])}, "-1"),
    "float ids": ({"input_ids": torch.tensor([[5.0, 6.0]])}, "dtype torch.float32.*inputs_embeds"),
    "ids without a batch": ({"input_ids": torch.tensor([5, 6])}, "input_ids\\[None\\]"),
    "ids as a list": ({"input_ids": [[5, 6]]}, "input_ids is a list"),
    "ids twice": ({"inputs": IDS, "input_ids": IDS}, "same argument"),
    "a mask of another length": ({"input_ids": IDS, "attention_mask": torch.ones(2, 5)}, r"\(2, 5\).*\(2, 7\)"),
    "a mask of another batch": ({"input_ids": IDS, "attention_mask": torch.ones(3, 7)}, r"\(3, 7\)"),
    "a mask of three dimensions": ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 7)}, "must be 2D"),
    "an unknown argument": ({"input_ids": IDS, "max_new_tokenz": 3}, "'max_new_tokenz'.*'max_new_tokens'"),
    "stop strings alone": ({"input_ids": IDS, "stop_strings": ["x"]}, "stop_strings=.*tokenizer"),
    "token healing alone": ({"input_ids": IDS, "token_healing": True}, "token_healing.*tokenizer"),
    "a maximum below the prompt": ({"input_ids": IDS, "max_length": 5}, "max_length=5.*7"),
    "seed and generator": ({"input_ids": IDS, "seed": 1, "generator": torch.Generator()}, "one source"),
    "a seed that is none": ({"input_ids": IDS, "seed": "x"}, "seed='x'"),
    "attentions of sdpa": ({"input_ids": IDS, "output_attentions": True}, "set_attn_implementation"),
    "a cache twice": ({"input_ids": IDS, "cache": DynamicCache(), "past_key_values": DynamicCache()}, "more than once"),
    "low memory": ({"input_ids": IDS, "num_beams": 2, "low_memory": True}, "low_memory"),
    "drafts for a batch": ({"input_ids": IDS, "prompt_lookup_num_tokens": 2}, "batch has 2"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_it_is_refused_at_the_call(kind):
    asked, message = WRONG[kind]
    with pytest.raises(ArgumentError, match=message):
        generate_stream(tiny_model(), **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": -3},
        {"num_return_sequences": 2, "do_sample": False},
        {"num_beams": 2, "num_return_sequences": 3},
        {"num_beams": 2, "early_stopping": "maybe"},
        {"cache_implementation": "none_such"},
    ],
    ids=str,
)
def test_settings_that_transformers_refuses_are_refused_at_the_call(asked):
    with pytest.raises(ValueError, match="|".join(asked)):
        generate_stream(tiny_model(), IDS, **asked)


@pytest.mark.parametrize(
    "asked", [{"synced_gpus": True}, {"custom_generate": print}, {"cache_implementation": "paged"}]
)
def test_what_cannot_be_streamed_is_said_to_be_so(asked):
    with pytest.raises(UnsupportedError, match=next(iter(asked))):
        generate_stream(tiny_model(), IDS, **asked)


def test_a_model_that_cannot_generate_is_refused():
    with pytest.raises(ArgumentError, match="can't generate"):
        generate_stream(AutoModel.from_config(tiny_model().config), IDS)


def test_a_cache_longer_than_the_prompt_is_refused():
    model, cache = tiny_model(), DynamicCache()
    generate_stream(model, IDS, cache=cache, max_new_tokens=5).to()
    with pytest.raises(ArgumentError, match=r"holds 11 positions.*only 7"):
        generate_stream(model, IDS, cache=cache)


def test_right_padding_is_warned_of_as_transformers_does(caplog):
    import transformers

    mask = torch.ones_like(IDS)
    mask[0, -1] = 0
    transformers.logging.set_verbosity_warning()
    transformers.logging.enable_propagation()
    try:
        next(generate_stream(tiny_model(), IDS, attention_mask=mask, max_new_tokens=2))
    finally:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_propagation()
    assert "right-padding was detected" in caplog.text


def test_prefill_wants_a_prompt_of_two_tokens_and_no_encoder():
    with pytest.raises(ArgumentError, match="at least two tokens"):
        prefill(tiny_model(), IDS[:, :1])
    with pytest.raises(UnsupportedError, match="decoder-only"):
        prefill(tiny_model("t5"), IDS)


def test_a_tokenizer_makes_stop_strings_welcome():
    stream = generate_stream(tiny_model(), IDS, stop_strings=["w5"], tokenizer=tiny_tokenizer(), max_new_tokens=2)
    assert stream.to().steps >= 1
