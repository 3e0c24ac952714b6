"""Assisted decoding: equal to transformers and to plain decoding, one aligned step a token."""

from __future__ import annotations

import pytest
import torch

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate, generate_stream
from unspool.errors import UnspoolError


def draft_for(model):
    """A draft that is right often, but not always."""
    torch.manual_seed(5)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.add_(torch.randn_like(parameter) * parameter.std() * 0.1)
    return model


KINDS = {
    "draft": lambda: {"assistant_model": draft_for(tiny_model())},
    "perfect draft": lambda: {"assistant_model": tiny_model()},
    "look-up": lambda: {"prompt_lookup_num_tokens": 3},
    "early exit": lambda: {"assistant_early_exit": 1},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "asked", [{}, {"do_sample": True}, {"repetition_penalty": 1.4}, {"eos_token_id": [82, 134, 32]}]
)
def test_equal_to_transformers(kind, asked):
    found = []
    for run in (lambda model, **kw: model.generate(**kw), generate):
        model, extra = tiny_model(), KINDS[kind]()
        torch.manual_seed(3)
        found.append(run(model, **prompt(), **extra, max_new_tokens=12, **{"do_sample": False, **asked}))
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_each_token_is_a_step_whose_tensors_are_those_of_plain_decoding(kind):
    asked = {"max_new_tokens": 10, "do_sample": False, "output_hidden_states": True, "eos_token_id": None}
    plain = list(generate_stream(tiny_model(), **prompt(), **asked))
    stream = generate_stream(tiny_model(), **prompt(), **asked, **KINDS[kind]())
    steps = list(stream)
    assert [int(step.tokens) for step in steps] == [int(step.tokens) for step in plain]
    for mine, other in zip(steps, plain, strict=True):
        assert (mine.index, mine.positions) == (other.index, other.positions)
        torch.testing.assert_close(mine.logits, other.logits, atol=1e-4, rtol=1e-4)
        for one, two in zip(mine.outputs.hidden_states, other.outputs.hidden_states, strict=True):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    result = stream.result
    assert result.accepted == sum(step.drafted for step in steps)
    assert result.drafted == result.accepted + result.rejected
    assert result.forwards == len({step.forward for step in steps})


@pytest.mark.filterwarnings("ignore")
def test_a_stop_inside_an_accepted_run_ends_there():
    """Transformers looks only at the end of a run, and goes on."""
    plain = generate(tiny_model(), **prompt(), max_new_tokens=12, eos_token_id=None)
    word = f"w{int(plain[0, 9])}"
    stream = generate_stream(
        tiny_model(),
        **prompt(),
        assistant_model=tiny_model(),
        max_new_tokens=12,
        eos_token_id=None,
        tokenizer=tiny_tokenizer(),
        stop_strings=[word],
    )
    assert stream.to().sequences.tolist() == plain[:, :10].tolist()


@pytest.mark.filterwarnings("ignore")
def test_a_seed_makes_drafts_and_verdicts_its_own_and_the_assistant_stays_as_it_was():
    model, draft = tiny_model(), draft_for(tiny_model())
    before, found = draft.generation_config.to_dict(), []
    for noise in (0, 3):
        state = torch.get_rng_state()
        stream = generate_stream(model, **prompt(), assistant_model=draft, max_new_tokens=9, do_sample=True, seed=2)
        for _ in stream:
            torch.rand(noise)
        found.append(stream.result.sequences)
        assert noise or torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*found)
    assert draft.generation_config.to_dict() == before


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("llama", {"use_cache": False}),
        ("llama", {"num_return_sequences": 2, "do_sample": True}),
        ("mamba", {}),
        ("rwkv", {}),
    ],
)
def test_what_cannot_be_drafted_for_is_refused_before_any_forward(name, asked):
    model = tiny_model(name)
    model.register_forward_pre_hook(lambda *_: pytest.fail("a forward was made"))
    with pytest.raises((UnspoolError, ValueError)):
        generate_stream(model, **prompt(), prompt_lookup_num_tokens=2, **asked)
