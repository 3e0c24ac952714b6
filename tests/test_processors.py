"""Every logits processor and warper that a config can ask for, and the caller's own."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
    WatermarkingConfig,
)

from tiny import ENCODER_DECODER, EOS, prompt, tiny_model
from unspool import generate, generate_stream
from unspool.errors import ArgumentError

SYNTH_ID = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[7, 11, 13, 17], context_history_size=16)
PROCESSORS = {
    "repetition_penalty": dict(repetition_penalty=1.7),
    "repetition reward": dict(repetition_penalty=0.6),
    "encoder_repetition_penalty": dict(encoder_repetition_penalty=1.7),
    "no_repeat_ngram_size": dict(no_repeat_ngram_size=1),
    "encoder_no_repeat_ngram_size": dict(encoder_no_repeat_ngram_size=1),
    "bad_words_ids": dict(bad_words_ids=[[i] for i in range(20, 80)] + [[9, 8], [7, 6, 5]]),
    "sequence_bias": dict(sequence_bias={(9,): 12.0, (9, 8): 9.0, (8, 7, 6): -5.0}),
    "min_length": dict(min_length=6),
    "min_new_tokens": dict(min_new_tokens=4),
    "forced_eos_token_id": dict(forced_eos_token_id=EOS),
    "forced eos, several": dict(forced_eos_token_id=[EOS, 9]),
    "exponential_decay": dict(exponential_decay_length_penalty=(2, 1.5)),
    "suppress_tokens": dict(suppress_tokens=list(range(10, 90))),
    "begin_suppress_tokens": dict(begin_suppress_tokens=list(range(10, 90))),
    "watermark": dict(watermarking_config=WatermarkingConfig(bias=5.0, seeding_scheme="lefthash")),
    "watermark, selfhash": dict(watermarking_config=WatermarkingConfig(bias=5.0, seeding_scheme="selfhash")),
    "renormalize_logits": dict(renormalize_logits=True),
}
WARPERS = {
    "temperature": dict(temperature=0.6),
    "top_k": dict(top_k=5),
    "top_p": dict(top_p=0.7),
    "min_p": dict(min_p=0.2),
    "top_h": dict(top_h=0.4),
    "typical_p": dict(typical_p=0.6),
    "epsilon_cutoff": dict(epsilon_cutoff=0.05),
    "eta_cutoff": dict(eta_cutoff=0.05),
    "synth_id": dict(watermarking_config=SYNTH_ID),
}
if not hasattr(GenerationConfig(), "top_h"):
    del WARPERS["top_h"]
ALONE = [(case, False) for case in PROCESSORS] + [(case, True) for case in (*PROCESSORS, *WARPERS)]
OUTPUTS = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
BASE = dict(max_new_tokens=6, top_k=0, **OUTPUTS)
RAGGED = prompt(3, 9, ragged=True)


def run(call, *args, seed=0, **kwargs):
    torch.manual_seed(seed)
    return call(*copy.deepcopy(args), **copy.deepcopy(kwargs))


def asked_for(model, *cases):
    """Settings of some cases for a model; the length of an encoder-decoder model's output counts from one."""
    if {"min_length", "min_new_tokens"} & set(cases):  # older releases make NaN of what is forbidden and decays
        cases = [case for case in cases if case != "exponential_decay"]
    asked = {key: value for case in cases for key, value in (PROCESSORS | WARPERS)[case].items()}
    if "min_length" in asked and not model.config.is_encoder_decoder:
        asked["min_length"] += RAGGED["input_ids"].shape[1]
    return asked


def assert_agree(model, **kwargs):
    """The ids and the scores are transformers'; returns its output. Its logits are not always raw: see below."""
    expected = run(model.generate, **kwargs)
    made = run(lambda **asked: generate(model, **asked), **kwargs)
    assert torch.equal(made.sequences, expected.sequences)
    torch.testing.assert_close(made.scores, expected.scores, rtol=1e-4, atol=1e-3)
    return made


def raw_logits(model, inputs, sequences, new):
    """What the model says at each of the new positions when it is shown the whole sequence at once."""
    rows = sequences.shape[0] // inputs["input_ids"].shape[0]
    mask = inputs["attention_mask"].repeat_interleave(rows, 0)
    if model.config.is_encoder_decoder:
        ids = inputs["input_ids"].repeat_interleave(rows, 0)
        said = model(input_ids=ids, attention_mask=mask, decoder_input_ids=sequences)
    else:
        mask = torch.cat([mask, mask.new_ones(sequences.shape[0], new)], dim=1)
        said = model(sequences, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    return said.logits[:, -new - 1 : -1].unbind(1)


def assert_raw(model, inputs, output):
    wanted = raw_logits(model, inputs, output.sequences, len(output.logits))
    torch.testing.assert_close(output.logits, wanted, rtol=1e-4, atol=1e-3)


# ------------------------------------------------------------------------------------------ the config's own


@pytest.mark.parametrize(("case", "do_sample"), ALONE)
@pytest.mark.parametrize("name", ["llama", *ENCODER_DECODER])
def test_each_alone_agrees_and_leaves_the_logits_raw(name, case, do_sample):
    model = tiny_model(name)
    asked = {**BASE, "do_sample": do_sample, "eos_token_id": 159, **asked_for(model, case)}
    if "forced" in case:
        asked["eos_token_id"] = None
    output = assert_agree(model, **RAGGED, **asked)
    assert_raw(model, RAGGED, output)
    assert any(not torch.equal(one, other) for one, other in zip(output.scores, output.logits, strict=True))


@pytest.mark.parametrize("case", [*PROCESSORS, *WARPERS])
def test_each_alone_agrees_with_several_samples_a_prompt(llama, case):
    asked = {**BASE, **asked_for(llama, case)}
    assert_agree(llama, **RAGGED, **asked, do_sample=True, num_return_sequences=2)


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_the_forced_first_id_comes_first(name):
    output = assert_agree(tiny_model(name), **RAGGED, **BASE, do_sample=True, forced_bos_token_id=9)
    assert (output.sequences[:, 1] == 9).all()


def test_the_forced_first_id_moves_the_suppression_at_the_beginning(llama):
    asked = dict(forced_bos_token_id=9, begin_suppress_tokens=list(range(10, 90)))
    assert_agree(llama, input_ids=torch.tensor([[7], [8]]), **BASE, **asked)


@pytest.mark.parametrize("do_sample", [False, True])
def test_invalid_values_are_removed(llama, do_sample):
    def spoil(module, args, output):
        output.logits[:, :, 9], output.logits[:, :, 10], output.logits[:, :, 11] = torch.nan, torch.inf, -torch.inf

    llama.register_forward_hook(spoil)
    output = assert_agree(llama, **RAGGED, **BASE, do_sample=do_sample, remove_invalid_values=True)
    assert all(scores.isfinite().all() for scores in output.scores)
    assert all(logits[:, 9].isnan().all() for logits in output.logits)


@given(
    name=st.sampled_from(["llama", "t5"]),
    cases=st.sets(st.sampled_from([*PROCESSORS, *WARPERS]), max_size=8),
    do_sample=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_of_them_together_agree(name, cases, do_sample, seed):
    model = tiny_model(name)
    asked = {**BASE, **asked_for(model, *(cases if do_sample else cases - WARPERS.keys()))}
    assert_agree(model, **RAGGED, **asked, do_sample=do_sample, seed=seed)


def test_all_of_them_at_once_agree(llama):
    asked = asked_for(llama, *WARPERS, *PROCESSORS)
    asked |= dict(suppress_tokens=[10, 11], typical_p=0.95, epsilon_cutoff=1e-3, eta_cutoff=1e-3, top_p=0.95)
    assert_agree(llama, **RAGGED, **{**BASE, **asked}, do_sample=True, num_return_sequences=2, guidance_scale=1.3)


def test_the_encoder_penalties_say_that_they_need_ids(llama):
    embedded = llama.get_input_embeddings()(RAGGED["input_ids"])
    asked = dict(inputs_embeds=embedded, encoder_repetition_penalty=1.5, max_new_tokens=2)
    with pytest.warns(UserWarning, match="`encoder_repetition_penalty` requires some form of `input_ids`"):
        made = generate(llama, **asked)
    with pytest.warns(UserWarning, match="`encoder_repetition_penalty` requires some form of `input_ids`"):
        assert torch.equal(made, llama.generate(**asked))


# ------------------------------------------------------------------------------------ guidance, prefixes

NEGATIVE = prompt(3, 5, ragged=True, seed=3)
GUIDED = {
    "last token": {},
    "negative prompt": dict(negative_prompt_ids=NEGATIVE["input_ids"]),
    "masked negative prompt": dict(
        negative_prompt_ids=NEGATIVE["input_ids"], negative_prompt_attention_mask=NEGATIVE["attention_mask"]
    ),
}


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("negative", GUIDED)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_guidance_agrees(name, negative, do_sample, use_cache):
    asked = dict(guidance_scale=1.6, do_sample=do_sample, use_cache=use_cache, **GUIDED[negative])
    model = tiny_model(name)
    output = assert_agree(model, **RAGGED, **BASE, **asked)
    assert_raw(model, RAGGED, output)


def test_guidance_starts_anew_in_each_call(llama):
    asked = dict(RAGGED, **BASE, **GUIDED["negative prompt"], guidance_scale=1.6)
    assert torch.equal(generate(llama, **asked).sequences, generate(llama, **asked).sequences)


def test_two_guided_streams_in_turns_give_what_each_gives_alone(llama):
    asked = [
        dict(RAGGED, **GUIDED["negative prompt"], guidance_scale=scale, max_new_tokens=5, do_sample=False)
        for scale in (1.3, 4.0)
    ]
    streams = [generate_stream(llama, **one) for one in asked]
    for _ in zip(*streams, strict=True):
        pass
    for stream, one in zip(streams, asked, strict=True):
        assert torch.equal(stream.result.sequences, llama.generate(**one))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_allowed_tokens_are_asked_for_with_the_same_arguments(name, samples):
    model, asked_with = tiny_model(name), []

    def allowed(prompt_index, ids):
        asked_with.append((prompt_index, ids.tolist()))
        return [9 + prompt_index, 20 + len(ids), int(ids[-1])]

    asked = dict(RAGGED, **BASE, do_sample=True, num_return_sequences=samples)
    torch.manual_seed(0)
    expected = model.generate(**asked, prefix_allowed_tokens_fn=allowed)
    wanted = list(asked_with)
    asked_with.clear()
    torch.manual_seed(0)
    made = generate(model, **asked, prefix_allowed_tokens_fn=allowed)
    assert asked_with == wanted
    assert torch.equal(made.sequences, expected.sequences)


# -------------------------------------------------------------------------------------- the caller's own


class Watch(LogitsProcessor):
    """Notes what it is shown, and adds something that shows where it stood."""

    def __init__(self):
        self.shown = []

    def __call__(self, input_ids, scores):
        self.shown.append((input_ids.clone(), scores.clone()))
        return scores + torch.arange(scores.shape[-1]) * 0.05


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_custom_processors_stand_where_transformers_puts_them(name, do_sample):
    model, mine, theirs = tiny_model(name), [Watch(), Watch()], [Watch(), Watch()]
    asked = dict(RAGGED, **BASE, do_sample=do_sample, repetition_penalty=1.7, renormalize_logits=True)
    if do_sample:
        asked |= dict(temperature=0.5, num_return_sequences=2)
    torch.manual_seed(0)
    expected = model.generate(**asked, logits_processor=theirs)
    torch.manual_seed(0)
    made = generate(model, **asked, logits_processor=mine)
    assert torch.equal(made.sequences, expected.sequences)
    torch.testing.assert_close(made.scores, expected.scores, rtol=1e-4, atol=1e-3)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.shown, other.shown, rtol=1e-4, atol=1e-3)
    assert len(mine[0].shown) == 6


def test_a_plain_function_can_be_a_processor(llama):
    def only_even(ids, scores):
        scores[:, 1::2] = -torch.inf
        return scores

    output = generate(llama, **RAGGED, **BASE, logits_processor=[only_even])
    assert (output.sequences[:, -6:] % 2 == 0).all()


@pytest.mark.parametrize(
    "custom",
    [RepetitionPenaltyLogitsProcessor(3.0), TemperatureLogitsWarper(0.4)],  # warpers are not replaced: both are there
    ids=["processor", "warper"],
)
def test_a_custom_processor_replaces_the_default_of_its_kind(llama, custom):
    asked = {**BASE, "do_sample": True, "temperature": 0.7, "repetition_penalty": 1.2}
    assert_agree(llama, **RAGGED, **asked, logits_processor=[custom])


def test_a_replaced_default_has_no_effect(llama):
    custom = RepetitionPenaltyLogitsProcessor(3.0)
    replaced = generate(llama, **RAGGED, **BASE, repetition_penalty=1.2, logits_processor=[custom])
    alone = generate(llama, **RAGGED, **BASE, logits_processor=[custom])
    torch.testing.assert_close(replaced.scores, alone.scores)


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_logits_stay_raw_beside_a_processor_that_works_in_place(name, do_sample):
    def halve(ids, scores):
        return scores.mul_(0.5)

    model = tiny_model(name)
    output = run(
        lambda **asked: generate(model, **asked), **RAGGED, **BASE, do_sample=do_sample, logits_processor=[halve]
    )
    assert_raw(model, RAGGED, output)
    for logits, scores in zip(output.logits, output.scores, strict=True):
        torch.testing.assert_close(scores, logits * 0.5)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_kept_steps_scores_are_not_changed_by_later_steps(llama, steps):
    buffer = torch.zeros(3, 160)

    def into_one_buffer(ids, scores):
        return torch.add(scores, 1, out=buffer)

    stream = generate_stream(llama, **RAGGED, max_new_tokens=4, logits_processor=[into_one_buffer])
    kept = [next(stream) for _ in range(steps)]
    before = [step.scores.clone() for step in kept]
    list(stream)
    assert all(torch.equal(step.scores, scores) for step, scores in zip(kept, before, strict=True))


# --------------------------------------------------------------------------------------------- their state


class Counting:
    """Forbids another token at each step; what it remembers is in an attribute of some kind."""

    def __init__(self, state, count):
        self.state, self._count = state, count

    def __call__(self, ids, scores):
        step = self._count(self)
        likeliest = scores.topk(step + 1).indices[:, :step]
        return scores.scatter(1, likeliest, -torch.inf)


def by_number(processor):
    processor.state += 1
    return processor.state


def by_list(processor):
    processor.state.append(0)
    return len(processor.state)


def by_nested_list(processor):
    processor.state[0].append(0)
    return len(processor.state[0])


def by_dict(processor):
    processor.state[len(processor.state)] = 0
    return len(processor.state)


def by_nested_dict(processor):
    processor.state["rows"].setdefault("seen", []).append(0)
    return len(processor.state["rows"]["seen"])


def by_tensor(processor):
    processor.state += 1
    return int(processor.state)


def by_new_attribute(processor):
    processor.steps = getattr(processor, "steps", 0) + 1
    return processor.steps


STATES = {
    "number": lambda: Counting(0, by_number),
    "list": lambda: Counting([], by_list),
    "list in list": lambda: Counting([[]], by_nested_list),
    "dict": lambda: Counting({}, by_dict),
    "list in dict in dict": lambda: Counting({"rows": {}}, by_nested_dict),
    "tensor": lambda: Counting(torch.tensor(0), by_tensor),
    "new attribute": lambda: Counting(None, by_new_attribute),
}
ASKED = dict(RAGGED, max_new_tokens=4, do_sample=False)


@pytest.mark.parametrize("kind", STATES)
def test_a_processor_with_state_starts_afresh_in_the_next_call(llama, kind):
    processor, expected = STATES[kind](), llama.generate(**ASKED, logits_processor=[STATES[kind]()])
    for _ in range(3):
        assert torch.equal(generate(llama, **ASKED, logits_processor=[processor]), expected)


@pytest.mark.parametrize("leave", ["close", "break", "error"])
def test_a_processor_starts_afresh_after_a_stream_that_was_left(llama, leave):
    processor, expected = STATES["list"](), llama.generate(**ASKED, logits_processor=[STATES["list"]()])
    stream = generate_stream(llama, **ASKED, logits_processor=[processor])
    with contextlib.suppress(RuntimeError), stream:
        for step in stream:
            if step.index == 1 and leave == "error":
                raise RuntimeError
            if step.index == 1:
                break
    assert torch.equal(generate(llama, **ASKED, logits_processor=[processor]), expected)


@pytest.mark.parametrize("kind", STATES)
def test_a_processor_that_a_live_stream_has_changed_is_refused(llama, kind):
    processor = STATES[kind]()
    first = generate_stream(llama, **ASKED, logits_processor=[processor])
    next(first)
    second = generate_stream(llama, **ASKED, logits_processor=[processor])
    with pytest.raises(ArgumentError, match="another stream is using"):
        next(second)
    expected = llama.generate(**ASKED, logits_processor=[STATES[kind]()])
    list(first)
    assert torch.equal(first.result.sequences, expected)


def test_a_processor_is_free_again_once_the_other_stream_is_over(llama):
    processor = STATES["number"]()
    first = generate_stream(llama, **ASKED, logits_processor=[processor])
    next(first)
    first.close()
    next(generate_stream(llama, **ASKED, logits_processor=[processor]))


def test_a_processor_without_state_may_serve_two_streams(llama):
    processor = RepetitionPenaltyLogitsProcessor(1.7)
    streams = [generate_stream(llama, **ASKED, logits_processor=[processor]) for _ in range(2)]
    for _ in zip(*streams, strict=True):
        pass
    expected = llama.generate(**ASKED, repetition_penalty=1.7)
    assert all(torch.equal(stream.result.sequences, expected) for stream in streams)


class Forbidding:
    """Forbids some tokens; the caller may name others between calls."""

    def __init__(self, ids):
        self.ids, self.calls = ids, 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.as_tensor(self.ids), -torch.inf)


def change_by_assignment(processor):
    processor.ids = [*processor.ids, 9]


def change_in_place(processor):
    processor.ids.append(9)


@pytest.mark.parametrize("change", [change_by_assignment, change_in_place])
def test_what_the_caller_changes_between_calls_is_kept(llama, change):
    processor = Forbidding([10])
    generate(llama, **ASKED, logits_processor=[processor])
    change(processor)
    generate(llama, **ASKED, logits_processor=[processor])
    assert processor.ids == [10, 9]


def test_a_processor_may_be_changed_after_a_call_that_failed(llama):
    processor = Forbidding([10])
    with pytest.raises(ValueError, match="top_k"):
        generate(llama, **ASKED | dict(do_sample=True, top_k=-3), logits_processor=[processor])
    processor.ids = [10, 9]
    generate(llama, **ASKED, logits_processor=[processor])
    assert processor.ids == [10, 9]


def test_a_processor_may_be_changed_after_a_prompt_that_could_not_be_read(llama):
    processor = Forbidding([10])
    broken = llama.model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(llama, **ASKED, logits_processor=[processor])
    broken.remove()
    processor.ids = [10, 9]
    generate(llama, **ASKED, logits_processor=[processor])
    assert processor.ids == [10, 9]
