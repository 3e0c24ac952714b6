"""Greedy search and sampling give what `model.generate()` gives: ids, types, and every tensor beside them."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from tiny import BOS, CONFIGS, ENCODER_DECODER, PAD, START, prompt, tiny_model
from unspool import bridge, generate, generate_stream

NAMES = sorted(CONFIGS)
SHOWS_ATTENTION = [name for name in NAMES if name not in ("mamba", "rwkv", "recurrent_gemma")]
DECODERS = [name for name in NAMES if name not in ENCODER_DECODER]
ALL_OUTPUTS = dict(
    return_dict_in_generate=True,
    output_scores=True,
    output_logits=True,
    output_hidden_states=True,
    output_attentions=True,
)
DECODING = {
    "greedy": dict(do_sample=False, max_new_tokens=6),
    "sample": dict(do_sample=True, max_new_tokens=6, top_k=50, temperature=1.3),
    "samples": dict(do_sample=True, max_new_tokens=6, top_k=0, num_return_sequences=3),
}
RAGGED = prompt(3, 9, ragged=True)


def both(model, *args, seed=0, **kwargs):
    """What unspool gives and what transformers gives, each after the same `torch.manual_seed`."""
    answers = []
    for call in (generate, type(model).generate):
        torch.manual_seed(seed)
        answers.append(call(model, *copy.deepcopy(args), **copy.deepcopy(kwargs)))
    return answers


def assert_same(made, expected):
    """Same types, same fields, same tensors up to what rounding does; of caches only the shapes."""
    assert type(made) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert made.dtype == expected.dtype
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-4)
    elif hasattr(expected, "layers"):
        for one, other in zip(made.layers, expected.layers, strict=True):
            assert [tensor.shape for tensor in held(one)] == [tensor.shape for tensor in held(other)]
    elif hasattr(expected, "keys"):
        assert list(made) == list(expected)
        for name in expected:
            assert_same(made[name], expected[name])
    elif isinstance(expected, (tuple, list)):
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            assert_same(one, other)


def held(layer):
    """The tensors that a layer of a cache holds: keys and values, or states."""
    kinds = ("keys", "values", "conv_states", "recurrent_states")
    found = (getattr(layer, kind, None) for kind in kinds)
    parts = [part for value in found for part in (value.values() if isinstance(value, dict) else [value])]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def assert_agree(model, *args, **kwargs):
    made, expected = both(model, *args, **kwargs)
    assert_same(made, expected)
    return expected


def early_end(model, inputs):
    """An id at which greedy search ends some row while another goes on."""
    new = model.generate(**inputs, do_sample=False, max_new_tokens=6, eos_token_id=None)[:, -6:].tolist()
    return next(i for row in new for i in row if len({ids.index(i) if i in ids else 6 for ids in new}) > 1)


# ----------------------------------------------------------------------------------------------- every model


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_a_ragged_batch_agree(name, decoding):
    assert_agree(tiny_model(name), **RAGGED, **DECODING[decoding])


@pytest.mark.parametrize("name", NAMES)
def test_ids_of_one_prompt_agree(name):
    assert_agree(tiny_model(name), prompt(1, 5)["input_ids"], do_sample=False, max_new_tokens=9)


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", NAMES)
def test_ids_agree_without_a_cache(name, decoding):
    assert_agree(tiny_model(name), **RAGGED, **DECODING[decoding], use_cache=False)


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", SHOWS_ATTENTION)
def test_every_tensor_of_the_output_agrees(name, decoding):
    model = tiny_model(name, attention="eager")
    expected = assert_agree(model, **RAGGED, **DECODING[decoding], **ALL_OUTPUTS)
    given = {key for key, value in expected.items() if value is not None}
    decoder = "decoder_" if name in ENCODER_DECODER else ""
    assert given >= {"sequences", "scores", "logits", decoder + "attentions", decoder + "hidden_states"}
    assert (name in ENCODER_DECODER) == ("cross_attentions" in given)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SHOWS_ATTENTION])
def test_every_tensor_of_a_recurrent_models_output_agrees(name):
    assert_agree(tiny_model(name), **RAGGED, **DECODING["samples"], **{**ALL_OUTPUTS, "output_attentions": False})


@pytest.mark.parametrize("name", SHOWS_ATTENTION)
def test_every_tensor_of_the_output_agrees_without_a_cache(name):
    assert_agree(tiny_model(name, attention="eager"), **RAGGED, **DECODING["sample"], **ALL_OUTPUTS, use_cache=False)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_end_early_are_padded_alike(name):
    model = tiny_model(name)
    end = early_end(model, RAGGED)
    expected = assert_agree(model, **RAGGED, do_sample=False, max_new_tokens=12, eos_token_id=end)
    assert (expected == PAD).any()


def test_the_end_id_fills_up_where_no_pad_id_is_set(llama):
    end = early_end(llama, RAGGED)
    llama.generation_config.pad_token_id = llama.config.pad_token_id = None
    assert_agree(llama, **RAGGED, do_sample=False, max_new_tokens=8, eos_token_id=end)


def test_rows_go_on_where_no_end_id_is_set(llama):
    assert_agree(llama, **RAGGED, do_sample=False, max_new_tokens=8, eos_token_id=None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_and_scores_of_any_dtype_are_float32(llama, dtype):
    llama.to(dtype)
    expected = assert_agree(llama, **RAGGED, **DECODING["sample"], **{**ALL_OUTPUTS, "output_attentions": False})
    assert expected.scores[0].dtype == torch.float32


# ------------------------------------------------------------------------------------------------ the outputs


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize("asked", [name for name in ALL_OUTPUTS if name.startswith("output")])
def test_only_the_outputs_that_are_asked_for_are_there(name, asked):
    model = tiny_model(name, attention="eager")
    assert_agree(model, **RAGGED, max_new_tokens=3, return_dict_in_generate=True, **{asked: True})


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_ids_alone_come_back_unless_a_dict_is_asked_for(name):
    expected = assert_agree(tiny_model(name), **RAGGED, max_new_tokens=3, output_scores=True)
    assert isinstance(expected, torch.Tensor)


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", SHOWS_ATTENTION)
def test_steps_hold_what_the_outputs_tuples_hold(name, decoding):
    model, asked = tiny_model(name, attention="eager"), {**DECODING[decoding], **ALL_OUTPUTS}
    torch.manual_seed(0)
    expected = model.generate(**RAGGED, **asked)
    torch.manual_seed(0)
    steps = list(generate_stream(model, **RAGGED, **asked))
    new = expected.sequences[:, -len(steps) :]
    for index, step in enumerate(steps):
        assert (step.index, step.forward) == (index, index)
        assert torch.equal(step.tokens, new[:, index])
        assert_same(step.logits, expected.logits[index])
        assert_same(step.scores, expected.scores[index])
        for field in ("attentions", "hidden_states", "decoder_attentions", "decoder_hidden_states", "cross_attentions"):
            if field in expected:
                assert_same(step.outputs[field], expected[field][index])


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_streams_steps_have_hidden_states_without_a_dict_being_asked_for(name):
    model = tiny_model(name)
    expected = model.generate(**RAGGED, max_new_tokens=3, return_dict_in_generate=True, output_hidden_states=True)
    field = "decoder_hidden_states" if name in ENCODER_DECODER else "hidden_states"
    steps = list(generate_stream(model, **RAGGED, max_new_tokens=3, output_hidden_states=True))
    assert_same(tuple(step.outputs[field] for step in steps), expected[field])


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "rwkv"])  # it repeats rows as if positions
def test_a_steps_positions_are_those_that_its_hidden_states_cover(name, use_cache):
    stream = generate_stream(
        tiny_model(name), **RAGGED, max_new_tokens=3, output_hidden_states=True, use_cache=use_cache
    )
    for step in stream:
        states = step.outputs.get("hidden_states") or step.outputs["decoder_hidden_states"]
        assert len(step.positions) == states[-1].shape[1]
        assert step.positions.stop == stream.result.prompt_length + step.index


@pytest.mark.parametrize("decoding", DECODING)
def test_logprobs_are_those_of_the_chosen_tokens_under_the_scores(llama, decoding):
    expected = both(llama, **RAGGED, **DECODING[decoding], return_dict_in_generate=True, output_scores=True)[1]
    torch.manual_seed(0)
    logprobs = [step.logprobs for step in generate_stream(llama, **RAGGED, **DECODING[decoding])]
    likelihoods = llama.compute_transition_scores(expected.sequences, expected.scores, normalize_logits=True)
    assert_same(torch.stack(logprobs, dim=1), likelihoods)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_the_result_holds_what_generate_returns(name):
    stream = generate_stream(tiny_model(name), **RAGGED, **DECODING["greedy"])
    steps = list(stream)
    expected = tiny_model(name).generate(**RAGGED, **DECODING["greedy"])
    assert torch.equal(stream.result.sequences, expected)
    assert torch.equal(stream.result.tokens, torch.stack([step.tokens for step in steps], dim=1))
    assert stream.result.steps == stream.result.forwards == 6


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "rwkv"])
def test_the_returned_cache_holds_the_same(name):
    made, expected = both(tiny_model(name), **RAGGED, **DECODING["samples"], return_dict_in_generate=True)
    layers = zip(made[bridge.CACHE].layers, expected[bridge.CACHE].layers, strict=True)
    compared = [assert_same(held(one), held(other)) for one, other in layers]
    assert len(compared) > 1


# ---------------------------------------------------------------------------------------------- the settings

LEVELS = {
    "own": (dict(max_new_tokens=3, temperature=0.5), None, {}),
    "given over own": (dict(max_new_tokens=3), dict(max_new_tokens=5), {}),
    "call over given": (dict(max_new_tokens=3), dict(max_new_tokens=5), dict(max_new_tokens=7)),
    "call over own": (dict(max_new_tokens=3), None, dict(max_new_tokens=7)),
    "each from its place": (dict(top_k=5), dict(do_sample=True, max_new_tokens=5), dict(temperature=0.5)),
    "own where given has none": (dict(do_sample=True, top_p=0.7), dict(max_new_tokens=4), {}),
    "max_length of own, max_new_tokens of call": (dict(max_length=11), None, dict(max_new_tokens=6)),
    "length counts the prompt": ({}, dict(max_length=13), {}),
    "output fields": ({}, dict(return_dict_in_generate=True, output_logits=True), dict(max_new_tokens=3)),
    "an end id of the call": ({}, dict(max_new_tokens=8, eos_token_id=7), dict(eos_token_id=list(range(60)))),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_settings_of_the_call_win_over_the_config_and_that_over_the_models_own(name, level):
    own, config, call = LEVELS[level]
    model = tiny_model(name)
    model.generation_config.update(**own)
    config = None if config is None else GenerationConfig(**config)
    assert_agree(model, **RAGGED, generation_config=config, **call)


def test_a_config_may_be_given_by_position(llama):
    assert_agree(llama, RAGGED["input_ids"], GenerationConfig(max_new_tokens=3, do_sample=True))


def test_configs_are_left_as_they_were(llama):
    config = GenerationConfig(max_new_tokens=3, do_sample=True, top_k=9)
    before = config.to_dict(), llama.generation_config.to_dict(), llama.config.to_dict()
    generate(llama, **RAGGED, generation_config=config, temperature=0.5, output_hidden_states=True)
    assert before == (config.to_dict(), llama.generation_config.to_dict(), llama.config.to_dict())


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_without_a_length_the_default_one_holds_with_transformers_warning(name):
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        expected = assert_agree(tiny_model(name), **RAGGED)
    start = RAGGED["input_ids"].shape[1] if name == "llama" else 1
    assert expected.shape[1] == start + 20


@given(
    name=st.sampled_from(["llama", "gemma3_text", "gpt2", "mixtral", "t5", "bart", "mamba"]),
    rows=st.integers(1, 3),
    length=st.integers(3, 10),
    new=st.integers(1, 8),
    sampled=st.one_of(
        st.just({"do_sample": False}),
        st.fixed_dictionaries(
            {"do_sample": st.just(True), "num_return_sequences": st.integers(1, 3)},
            optional={
                "temperature": st.floats(0.3, 2),
                "top_k": st.integers(1, 60),
                "top_p": st.floats(0.3, 1),
                "min_p": st.floats(0.01, 0.3),
            },
        ),
    ),
    others=st.fixed_dictionaries(
        {},
        optional={
            "use_cache": st.booleans(),
            "repetition_penalty": st.floats(0.7, 2),
            "no_repeat_ngram_size": st.integers(1, 3),
            "eos_token_id": st.lists(st.integers(5, 159), min_size=1, max_size=40),
            "min_new_tokens": st.just(1),
            "renormalize_logits": st.booleans(),
            "output_hidden_states": st.booleans(),
        },
    ),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_any_settings_agree(name, rows, length, new, sampled, others, seed):
    outputs = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    inputs = prompt(rows, length, ragged=True, seed=seed)
    assert_agree(tiny_model(name), **inputs, **sampled, **others, **outputs, max_new_tokens=new, seed=seed)


# ------------------------------------------------------------------------------------------------ the inputs


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("ids", [[[START, 9, 8]], [[9, 8, 7]], [[START]]], ids=["with start", "without start", "start"])
@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_decoder_ids_are_continued(name, ids, decoding):
    given = torch.tensor(ids).expand(3, -1)
    assert_agree(tiny_model(name), **RAGGED, decoder_input_ids=given, **DECODING[decoding])


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_a_mask_over_the_decoder_ids_is_heeded(name):
    given = torch.tensor([[START, PAD, 8], [START, 9, 8], [START, 7, 6]])
    mask = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]])
    assert_agree(
        tiny_model(name), **RAGGED, decoder_input_ids=given, decoder_attention_mask=mask, **DECODING["samples"]
    )


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_encoder_outputs_that_are_given_are_used(name, with_ids, decoding):
    model = tiny_model(name)
    encoded = model.get_encoder()(**RAGGED).last_hidden_state + 0.3  # not what the encoder would say again
    inputs = RAGGED if with_ids else {"attention_mask": RAGGED["attention_mask"]}
    made, expected = both(
        model,
        **inputs,
        **DECODING[decoding],
        encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert_same(made, expected)


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_the_encoder_may_be_given_embeddings(name):
    model = tiny_model(name)
    embedded = model.get_input_embeddings()(RAGGED["input_ids"])
    assert_agree(model, inputs_embeds=embedded, attention_mask=RAGGED["attention_mask"], **DECODING["sample"])


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "mistral"])
def test_embeddings_alone_give_the_new_ids_alone(name, decoding):
    model = tiny_model(name)
    embedded = model.get_input_embeddings()(RAGGED["input_ids"]) * 1.1
    inputs = dict(inputs_embeds=embedded, attention_mask=RAGGED["attention_mask"])
    expected = assert_agree(model, **inputs, **DECODING[decoding])
    assert expected.shape[1] == 6


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "mistral"])
def test_embeddings_with_ids_give_the_ids_too(name, decoding):
    model = tiny_model(name)
    embedded = model.get_input_embeddings()(RAGGED["input_ids"]) * 1.1
    expected = assert_agree(model, **RAGGED, inputs_embeds=embedded, **DECODING[decoding])
    assert expected.shape[1] == 9 + 6


def test_embeddings_count_towards_max_length(llama):
    embedded = llama.get_input_embeddings()(RAGGED["input_ids"])
    assert_agree(llama, inputs_embeds=embedded, max_length=12)


def test_positions_of_embeddings_count_from_the_first(llama):
    embedded = llama.get_input_embeddings()(RAGGED["input_ids"])
    stream = generate_stream(llama, inputs_embeds=embedded, max_new_tokens=2)
    assert [step.positions for step in stream] == [range(9), range(9, 10)]


@pytest.mark.parametrize("inputs", [{}, {"inputs": None}, {"input_ids": None}], ids=["nothing", "inputs", "input_ids"])
@pytest.mark.parametrize("decoding", ["greedy", "samples"])
def test_without_a_prompt_the_bos_id_starts(llama, inputs, decoding):
    expected = assert_agree(llama, **inputs, **DECODING[decoding])
    assert (expected[:, 0] == BOS).all()


def test_the_bos_id_may_be_given_at_the_call(llama):
    llama.generation_config.bos_token_id = None
    expected = assert_agree(llama, bos_token_id=9, max_new_tokens=3)
    assert expected[0, 0] == 9


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_position_ids_that_are_given_are_used_and_continued(name, decoding):
    positions = (torch.arange(9) * 2 + torch.arange(3)[:, None]) % 40
    made, expected = both(
        tiny_model(name),
        **RAGGED,
        position_ids=positions,
        **DECODING[decoding],
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert_same(made, expected)
    plain = tiny_model(name).generate(**RAGGED, max_new_tokens=1, return_dict_in_generate=True, output_logits=True)
    assert not torch.allclose(expected.logits[0][:3], plain.logits[0])


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("use_cache", [True, False])
def test_token_types_are_used_and_continued(decoding, use_cache):
    types = torch.tensor([[5] * 4 + [6] * 5]).expand(3, -1)
    inputs = dict(RAGGED, token_type_ids=types, use_cache=use_cache)
    assert_agree(tiny_model("gpt2"), **inputs, **DECODING[decoding], return_dict_in_generate=True, output_logits=True)


def test_without_a_mask_pad_ids_are_taken_for_padding(llama):
    assert_agree(llama, RAGGED["input_ids"], **DECODING["greedy"], output_scores=True, return_dict_in_generate=True)


@pytest.mark.parametrize("key", ["inputs", "input_ids"])
def test_the_prompt_may_be_named_either_way(llama, key):
    assert_agree(llama, **{key: RAGGED["input_ids"]}, attention_mask=RAGGED["attention_mask"], max_new_tokens=3)


def test_arguments_of_the_model_reach_it(llama):
    assert_agree(llama, **RAGGED, max_new_tokens=3, logits_to_keep=0)


def test_a_prompt_of_one_token_agrees(llama):
    assert_agree(llama, torch.tensor([[7], [8]]), **DECODING["samples"])


# ------------------------------------------------------------------------------------------- the randomness

OWN_SOURCES = {
    "seed": lambda: {"seed": 5},
    "generator": lambda: {"generator": torch.Generator().manual_seed(5)},
}


@pytest.mark.parametrize("source", OWN_SOURCES)
@pytest.mark.parametrize("decoding", ["sample", "samples"])
@pytest.mark.parametrize("name", ["llama", "t5", "mamba"])
def test_a_source_of_its_own_draws_what_manual_seed_draws(name, decoding, source):
    model = tiny_model(name)
    torch.manual_seed(5)
    expected = model.generate(**RAGGED, **DECODING[decoding])
    torch.manual_seed(1)
    assert torch.equal(generate(model, **RAGGED, **DECODING[decoding], **OWN_SOURCES[source]()), expected)


@pytest.mark.parametrize("source", OWN_SOURCES)
def test_a_source_of_its_own_leaves_the_global_one_alone(llama, source):
    before = torch.get_rng_state()
    for _ in generate_stream(llama, **RAGGED, **DECODING["sample"], **OWN_SOURCES[source]()):
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("source", OWN_SOURCES)
def test_a_source_of_its_own_hears_nothing_of_what_others_draw(llama, source):
    expected = generate(llama, **RAGGED, **DECODING["sample"], **OWN_SOURCES[source]())
    stream = generate_stream(llama, **RAGGED, **DECODING["sample"], **OWN_SOURCES[source]())
    for _ in stream:
        torch.rand(7)
    assert torch.equal(stream.result.sequences, expected)


def test_a_generator_goes_on_from_where_it_is(llama):
    source = torch.Generator().manual_seed(5)
    made = [generate(llama, **RAGGED, **DECODING["sample"], generator=source) for _ in range(2)]
    torch.manual_seed(5)
    assert_same(made, [llama.generate(**RAGGED, **DECODING["sample"]) for _ in range(2)])


def test_without_a_seed_two_calls_draw_as_two_calls_of_transformers(llama):
    torch.manual_seed(5)
    made = [generate(llama, **RAGGED, **DECODING["sample"]) for _ in range(2)]
    torch.manual_seed(5)
    assert_same(made, [llama.generate(**RAGGED, **DECODING["sample"]) for _ in range(2)])
    assert not torch.equal(*made)


def test_greedy_search_draws_nothing(llama):
    before = torch.get_rng_state()
    generate(llama, **RAGGED, **DECODING["greedy"])
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_that_have_ended_are_drawn_for_all_the_same(llama):
    expected = assert_agree(llama, **RAGGED, do_sample=True, max_new_tokens=12, eos_token_id=list(range(4, 40)))
    assert (expected[:, -1] == PAD).any()
