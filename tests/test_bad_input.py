"""What can be known to be wrong is refused at the call, in words; the rest arrives as it is, when it comes."""

from __future__ import annotations

import copy
import logging
import re
import traceback

import pytest
import torch
import transformers
from transformers import AutoModel, DynamicCache

from tiny import VOCAB, prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, bridge, generate, generate_stream
from unspool.errors import ArgumentError, CriterionError, UnsupportedError

PROMPT = prompt(2, 7)
IDS, MASK = PROMPT["input_ids"], PROMPT["attention_mask"]


@pytest.fixture
def said():
    """What transformers and unspool write to their log, each time as if for the first time."""

    class Notes(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    def take():
        logging.Logger.warning_once.cache_clear()
        taken = list(messages)
        messages.clear()
        return taken

    messages, handler, logger = [], Notes(), logging.getLogger("transformers")
    level = logger.level
    logger.addHandler(handler)
    transformers.logging.set_verbosity_warning()
    take()
    yield take
    logger.removeHandler(handler)
    logger.setLevel(level)


# ----------------------------------------------------------------------------------------------- the prompt

PROMPTS = {
    "empty": (torch.zeros(1, 0, dtype=torch.long), "The prompt is empty"),
    "too high": (IDS + 150, f"holds {int(IDS.max()) + 150}, which is not in the model's vocabulary of {VOCAB} ids"),
    "negative": (IDS.index_fill(1, torch.tensor(2), -4), "holds -4, which is not in the model's vocabulary"),
    "floats": (IDS.float(), r"has dtype torch.float32; token ids are integers"),
    "bools": (IDS > 0, "has dtype torch.bool; token ids are integers"),
    "one dimension": (IDS[0], r"has shape \(7,\); a batch \(batch, length\) would do"),
    "a list": (IDS.tolist(), "is a list; a tensor of token ids"),
    "an encoding": (PROMPT, "is a dict; a tensor of token ids"),
}


@pytest.mark.parametrize("key", ["inputs", "input_ids"])
@pytest.mark.parametrize("case", PROMPTS)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_ids_that_are_none_are_refused(name, case, key):
    ids, message = PROMPTS[case]
    with pytest.raises(ArgumentError, match=message):
        generate_stream(tiny_model(name), **{key: ids}, max_new_tokens=2)


@pytest.mark.parametrize("case", ["too high", "negative", "floats"])
def test_decoder_ids_that_are_none_are_refused(case):
    ids, _ = PROMPTS[case]
    with pytest.raises(ArgumentError, match="decoder_input_ids"):
        generate_stream(tiny_model("t5"), **PROMPT, decoder_input_ids=ids, max_new_tokens=2)


def test_no_prompt_without_a_bos_id_is_refused(llama):
    llama.generation_config.bos_token_id = None
    with pytest.raises(ArgumentError, match="No prompt was given, and bos_token_id"):
        generate_stream(llama, max_new_tokens=2)


def test_a_prompt_that_is_given_twice_is_refused(llama):
    with pytest.raises(ArgumentError, match="inputs and input_ids were both given"):
        generate_stream(llama, IDS, input_ids=IDS, max_new_tokens=2)


@pytest.mark.parametrize("shape", [(2, 5), (2, 9), (1, 7), (3, 7), (7,), (2, 1, 7, 7)], ids=str)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_mask_of_another_shape_is_refused(name, shape):
    with pytest.raises(ArgumentError, match=re.escape(f"attention_mask has shape {shape}")):
        generate_stream(tiny_model(name), IDS, attention_mask=torch.ones(shape, dtype=torch.long), max_new_tokens=2)


def test_a_mask_of_another_shape_than_the_embeddings_is_refused(llama):
    embedded = llama.get_input_embeddings()(IDS)
    with pytest.raises(ArgumentError, match=r"attention_mask has shape \(2, 5\)"):
        generate_stream(llama, inputs_embeds=embedded, attention_mask=MASK[:, :5], max_new_tokens=2)


@pytest.mark.parametrize("with_mask", [True, False])
def test_right_padding_is_warned_of_as_in_transformers(llama, said, with_mask):
    mask = MASK.clone()
    mask[1, -2:] = 0
    inputs = dict(input_ids=IDS.masked_fill(mask == 0, 0), **({"attention_mask": mask} if with_mask else {}))
    expected = llama.generate(**inputs, max_new_tokens=2)
    wanted = said()
    assert torch.equal(generate(llama, **inputs, max_new_tokens=2), expected)
    assert said() == wanted
    assert any("right-padding was detected" in line for line in wanted)


@pytest.mark.parametrize("inputs", [PROMPT, prompt(3, 7, ragged=True), {"input_ids": IDS[:1]}])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_good_input_is_not_warned_of(name, said, inputs):
    generate(tiny_model(name), **inputs, max_new_tokens=2)
    assert said() == []


# --------------------------------------------------------------------------------------------- the settings

SETTINGS = {
    "no new tokens": (dict(max_new_tokens=0), "max_new_tokens"),
    "fewer than none": (dict(max_new_tokens=-1), "max_new_tokens"),
    "max_length of the prompt": (dict(max_length=7), "max_length=7 counts the prompt, and input_ids has 7 tokens"),
    "max_length of 0": (dict(max_length=0), "max_length=0"),
    "stop strings": (dict(stop_strings=["x"]), r"stop_strings=\['x'\] needs the model's tokenizer"),
    "token healing": (dict(token_healing=True), "token_healing=True needs the model's tokenizer"),
    "seed and generator": (dict(seed=1, generator=torch.Generator()), "seed and generator were both given"),
    "seed of a wrong kind": (dict(seed="1"), "seed='1' is not an int"),
    "generator of a wrong kind": (dict(generator=1), "generator is a int"),
    "several greedy samples": (dict(do_sample=False, num_return_sequences=2), "num_return_sequences"),
    "more samples than beams": (dict(num_beams=2, num_return_sequences=3), "num_return_sequences"),
    "a word for early stopping": (dict(num_beams=2, early_stopping="maybe"), "early_stopping"),
    "low memory": (dict(num_beams=2, low_memory=True), "low_memory"),
    "drafts for a batch": (dict(prompt_lookup_num_tokens=2), "batch has 2"),
    "a kind of cache": (dict(cache_implementation="none_such"), "cache_implementation"),
    "a decoding method": (dict(decoding="best"), "decoding='best' is not a known decoding method"),
    "temperature of 0": (dict(do_sample=True, temperature=0.0), "temperature"),
    "negative temperature": (dict(do_sample=True, temperature=-1.0), "temperature"),
    "negative top_k": (dict(do_sample=True, top_k=-3), "top_k"),
    "negative top_p": (dict(do_sample=True, top_p=-0.1), "top_p"),
    "min_p above 1": (dict(do_sample=True, min_p=2.0), "min_p"),
    "negative penalty": (dict(repetition_penalty=-1.0), "penalty"),
    "chunks of none": (dict(prefill_chunk_size=0), "prefill_chunk_size"),
    "negative chunks": (dict(prefill_chunk_size=-1), "prefill_chunk_size"),
    "a cache and a kind of cache": (dict(cache=DynamicCache(), cache_implementation="static"), "cache_implementation"),
    "a tuple for a cache": (dict(cache=((IDS, IDS),)), "tuple"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_can_not_be_are_refused_at_the_call(llama, case):
    asked, message = SETTINGS[case]
    with pytest.raises(ValueError, match=message):
        generate_stream(llama, **PROMPT, **asked)


@pytest.mark.parametrize(
    ("inputs", "length"),
    [
        (lambda model: PROMPT, 1),
        (lambda model: dict(PROMPT, decoder_input_ids=IDS), 7),
        (lambda model: dict(inputs_embeds=model.get_input_embeddings()(IDS)), 1),
    ],
    ids=["start id", "decoder ids", "embeddings"],
)
def test_a_length_without_room_in_the_decoder_is_refused_at_the_call(inputs, length):
    model = tiny_model("t5")
    with pytest.raises(ValueError, match=f"max_length.*{length}"):
        generate_stream(model, **inputs(model), max_length=length)


def test_a_length_without_room_behind_embeddings_is_refused_at_the_call(llama):
    with pytest.raises(ValueError, match="max_length"):
        generate_stream(llama, inputs_embeds=llama.get_input_embeddings()(IDS), max_length=7)


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("max_new_token", "max_new_tokens"),
        ("temprature", "temperature"),
        ("attention_maks", "attention_mask"),
        ("logit_processor", "logits_processor"),
        ("past_key_value", "past_key_values"),
        ("streamr", "streamer"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_an_unknown_argument_is_refused_with_the_nearest_known(name, unknown, nearest):
    with pytest.raises(ArgumentError, match=rf"'{unknown}' \(did you mean '{nearest}'\?\)"):
        generate_stream(tiny_model(name), **PROMPT, max_new_tokens=2, **{unknown: 3})


def test_all_unknown_arguments_are_named(llama):
    with pytest.raises(ArgumentError, match=r"'xyzzy'; 'top_kk' \(did you mean 'top_k'\?\)"):
        generate_stream(llama, **PROMPT, xyzzy=1, top_kk=2)


def test_an_argument_of_another_kind_of_model_is_unknown(llama):
    with pytest.raises(ArgumentError, match="pixel_values"):
        generate_stream(llama, **PROMPT, pixel_values=torch.zeros(1))


FLAGS = {
    "temperature": dict(do_sample=False, temperature=0.5),
    "top_p and top_k": dict(do_sample=False, top_p=0.5, top_k=3),
    "beams": dict(do_sample=False, length_penalty=2.0),
    "both lengths": dict(do_sample=False, max_length=20),
}


@pytest.mark.parametrize("case", FLAGS)
def test_settings_without_effect_are_warned_of_as_in_transformers(llama, said, case):
    asked = dict(PROMPT, max_new_tokens=2, **FLAGS[case])
    expected = llama.generate(**asked)
    wanted = said()
    assert torch.equal(generate(llama, **asked), expected)
    assert said() == wanted
    assert wanted


def test_lengths_that_can_not_be_met_are_warned_of_as_in_transformers(llama):
    asked = dict(PROMPT, max_new_tokens=2, min_new_tokens=5)
    with pytest.warns(UserWarning, match="Unfeasible length constraints") as theirs:
        expected = llama.generate(**asked)
    with pytest.warns(UserWarning, match="Unfeasible length constraints") as mine:
        assert torch.equal(generate(llama, **asked), expected)
    assert [str(one.message) for one in mine] == [str(one.message) for one in theirs]


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_attentions_are_refused_of_an_implementation_that_can_not_give_them(name):
    with pytest.raises(ArgumentError, match=r"attn_implementation='sdpa'.*set_attn_implementation\('eager'\)"):
        generate_stream(tiny_model(name, attention="sdpa"), **PROMPT, output_attentions=True)
    step = next(
        generate_stream(tiny_model(name, attention="eager"), **PROMPT, output_attentions=True, max_new_tokens=1)
    )
    assert step.outputs["decoder_attentions" if name == "bart" else "attentions"][0].ndim == 4


def test_generate_returns_no_attentions_where_transformers_returns_none_and_warns():
    model = tiny_model("llama", attention="sdpa")
    how = {"output_attentions": True, "return_dict_in_generate": True, "max_new_tokens": 2}
    theirs = model.generate(**PROMPT, **how)
    assert generate(model, **PROMPT, **how).attentions == theirs.attentions


@pytest.mark.parametrize("asked", [dict(synced_gpus=True), dict(custom_generate=print)], ids=str)
def test_what_can_not_be_streamed_is_said_to_be_so(llama, asked):
    with pytest.raises(UnsupportedError, match=next(iter(asked))):
        generate_stream(llama, **PROMPT, **asked)


# ------------------------------------------------------------------------------------------------ the model


@pytest.mark.parametrize(
    "model",
    [
        lambda: AutoModel.from_config(tiny_model().config),
        lambda: torch.nn.Linear(2, 2),
        lambda: tiny_model().model,
        lambda: "gpt2",
        lambda: None,
    ],
    ids=["without a head", "of torch", "an inner model", "a name", "none"],
)
def test_a_model_that_can_not_generate_is_refused(model):
    made = model()
    with pytest.raises(ArgumentError, match=f"model={type(made).__name__} can't generate"):
        generate_stream(made, IDS, max_new_tokens=2)


def test_nothing_runs_and_nothing_is_opened_when_an_argument_is_refused(llama):
    llama.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))

    class Sink:
        def open(self, opening):
            pytest.fail("the sink was opened")

        take = close = open

    for call in (generate, generate_stream):
        with pytest.raises(ArgumentError):
            call(llama, IDS.float(), max_new_tokens=2, sinks=[Sink()])


def test_a_refusal_is_an_error_of_unspool_and_names_its_stage(llama):
    with pytest.raises(ArgumentError) as caught:
        generate_stream(llama, IDS.float())
    assert isinstance(caught.value, ValueError)
    assert caught.value.__notes__ == ["unspool: raised in the 'configure' stage"]


# -------------------------------------------------------------------------------- what comes up in mid-stream


class After:
    """A processor or criterion that does something once a row has grown by two tokens."""

    def __init__(self, act):
        self.act = act

    def __call__(self, ids, given, **kwargs):
        if ids.shape[1] >= 7 + 2:
            return self.act(ids, given)
        return given if isinstance(given, torch.Tensor) else torch.zeros(ids.shape[0], dtype=torch.bool)


def run(model, **asked):
    """The steps before the error, the error, and the result."""
    stream, steps = generate_stream(model, **PROMPT, **{"max_new_tokens": 6, "eos_token_id": None, **asked}), []
    with pytest.raises(Exception) as caught:  # noqa: PT011
        steps += stream
    return stream, caught.value


class Mine(Exception):
    pass


def raise_mine(ids, given):
    raise Mine("of the caller's")


@pytest.mark.parametrize("decoding", [dict(do_sample=False), dict(do_sample=True), dict(num_beams=2)], ids=str)
@pytest.mark.parametrize(("where", "made"), [("logits_processor", 2), ("stopping_criteria", 1)])
def test_what_a_processor_or_criterion_raises_arrives_as_it_is(llama, where, made, decoding):
    stream, error = run(llama, **decoding, **{where: [After(raise_mine)]})
    assert type(error) is Mine
    assert error.args == ("of the caller's",)
    assert error.__notes__ == ["unspool: raised in the 'decode' stage"]
    assert "in raise_mine" in "".join(traceback.format_tb(error.__traceback__))
    assert stream.result.steps == made
    assert {finish.reason for finish in stream.result.finishes} == {FinishReason.ERROR}
    assert all(finish.detail is error for finish in stream.result.finishes)


SCORES = {
    "narrower": lambda ids, scores: scores[:, :-1],
    "of one row": lambda ids, scores: scores[0],
    "nothing": lambda ids, scores: None,
    "a list": lambda ids, scores: scores.tolist(),
    "only the ids": lambda ids, scores: ids,
}


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("wrong", SCORES)
def test_a_processor_that_returns_no_scores_is_named(llama, wrong, do_sample):
    stream, error = run(llama, logits_processor=[After(SCORES[wrong])], do_sample=do_sample)
    assert type(error) is CriterionError
    assert re.search(rf"The logits processor After must return scores of shape \(2, {VOCAB}\)", str(error))
    assert stream.result.steps == 2


VERDICTS = {
    "a column": lambda ids, scores: torch.zeros(2, 1, dtype=torch.bool),
    "one row too many": lambda ids, scores: torch.zeros(3, dtype=torch.bool),
    "floats": lambda ids, scores: torch.zeros(2),
    "nothing": lambda ids, scores: None,
    "a list": lambda ids, scores: [False, True],
    "a word": lambda ids, scores: "stop",
    "a number": lambda ids, scores: 1,
}


@pytest.mark.parametrize("wrong", VERDICTS)
def test_a_criterion_that_returns_no_verdict_a_row_is_named(llama, wrong):
    """transformers#29056: a wrong shape is broadcast, or fails far from the criterion."""
    stream, error = run(llama, stopping_criteria=[After(VERDICTS[wrong])])
    assert type(error) is CriterionError
    assert re.search(r"The stopping criterion After must return a bool, or a bool tensor of shape \(2,\)", str(error))
    assert stream.result.steps == 1


def spoil(model, after=2):
    """Makes a model say nothing but NaN from some forward on."""
    count = iter(range(99))

    def hook(module, args, output):
        if next(count) >= after:
            output.logits.fill_(torch.nan)

    model.register_forward_hook(hook)
    return model


def test_logits_that_are_no_numbers_are_an_error_while_sampling_as_in_transformers(llama):
    stream, error = run(spoil(copy.deepcopy(llama)), do_sample=True)
    assert stream.result.steps == 2
    with pytest.raises(type(error), match=re.escape(str(error))):
        spoil(llama).generate(**PROMPT, max_new_tokens=6, do_sample=True)
    assert isinstance(error, RuntimeError)


def test_logits_that_are_no_numbers_do_in_greedy_search_what_they_do_in_transformers(llama):
    asked = dict(PROMPT, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert torch.equal(generate(spoil(copy.deepcopy(llama)), **asked), spoil(llama).generate(**asked))


def test_a_prefix_without_any_allowed_token_is_an_error_as_in_transformers(llama):
    asked = dict(prefix_allowed_tokens_fn=lambda row, ids: [9] if len(ids) < 9 else [])
    stream, error = run(llama, **asked)
    with pytest.raises(type(error), match="returned an empty list for batch ID 0"):
        llama.generate(**PROMPT, **asked, max_new_tokens=6)
    assert stream.result.steps == 2


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_of_the_model_arrives_as_it_is(llama, after):
    count = iter(range(99))
    llama.register_forward_pre_hook(lambda *_: raise_mine(0, 0) if next(count) == after else None)
    stream, error = run(llama)
    assert type(error) is Mine
    assert error.__notes__ == [f"unspool: raised in the {'decode' if after else 'prefill'!r} stage"]
    assert next(stream, None) is None


def test_the_model_can_be_used_again_after_an_error(llama):
    run(llama, logits_processor=[After(raise_mine)])
    asked = dict(PROMPT, max_new_tokens=4, do_sample=False)
    assert torch.equal(generate(llama, **asked), tiny_model().generate(**asked))


def test_generate_raises_what_its_steps_raise(llama):
    with pytest.raises(Mine):
        generate(llama, **PROMPT, max_new_tokens=6, eos_token_id=None, logits_processor=[After(raise_mine)])


# ------------------------------------------------------------------------------------------- the consumer


class Sink:
    def __init__(self):
        self.closed = []

    def open(self, opening): ...

    def take(self, event): ...

    def close(self, result, error):
        self.closed.append((result.steps, type(error)))


def keep_on(stream):
    for step in stream:
        if step.index == 1:
            return


def fail_in_the_block(stream):
    with stream:
        keep_on(stream)
        raise Mine


def interrupt_in_the_block(stream):
    with stream:
        keep_on(stream)
        raise KeyboardInterrupt


def leave_the_block(stream):
    with stream:
        keep_on(stream)


def leave_and_close(stream):
    keep_on(stream)
    stream.close()


ENDS = {
    fail_in_the_block: (Mine, FinishReason.ERROR),
    interrupt_in_the_block: (KeyboardInterrupt, FinishReason.INTERRUPTED),
    leave_the_block: (type(None), FinishReason.STOPPED),
    leave_and_close: (type(None), FinishReason.STOPPED),
}


@pytest.mark.parametrize("consume", ENDS)
def test_a_consumer_that_fails_leaves_or_is_interrupted_ends_the_stream_once(llama, consume):
    error, reason = ENDS[consume]
    sink, forwards = Sink(), []
    llama.register_forward_pre_hook(lambda *_: forwards.append(1))
    stream = generate_stream(llama, **PROMPT, max_new_tokens=6, eos_token_id=None, sinks=[sink])
    if error is type(None):
        consume(stream)
    else:
        with pytest.raises(error):
            consume(stream)
    assert sink.closed == [(2, error)]
    assert {finish.reason for finish in stream.result.finishes} == {reason}
    assert stream.result.tokens.shape == (2, 2)
    assert next(stream, None) is None
    assert len(forwards) == 2


def test_a_stream_whose_consumer_failed_can_be_gone_on_from(llama):
    held, asked = DynamicCache(config=llama.config), dict(do_sample=False, eos_token_id=None)
    stream = generate_stream(llama, **PROMPT, **asked, cache=held, max_new_tokens=6)
    with pytest.raises(Mine):
        fail_in_the_block(stream)
    made = generate(llama, stream.result.sequences, **asked, cache=held, max_new_tokens=4)
    assert torch.equal(made, llama.generate(**PROMPT, **asked, max_new_tokens=6))


def test_stop_strings_with_a_tokenizer_are_not_refused(llama):
    stream = generate_stream(llama, **PROMPT, stop_strings=["w9"], tokenizer=tiny_tokenizer(), max_new_tokens=2)
    assert len(list(stream)) <= 2


def test_a_cache_by_the_models_own_name_is_known(llama):
    generate_stream(llama, **PROMPT, **{bridge.CACHE: DynamicCache()}, max_new_tokens=2)


class _ByRow:
    """A processor, a criterion and a sink that keeps something for each row."""

    keeps_rows = True

    def __call__(self, ids, scores, **kwargs):
        return torch.zeros(ids.shape[0], dtype=torch.bool) if scores is None else scores

    def open(self, opening):
        pass

    def take(self, event):
        pass

    def close(self, result, error):
        pass


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "sinks"])
def test_state_by_row_that_cannot_follow_beams_is_refused_by_name(where):
    with pytest.raises(ArgumentError, match="_ByRow that keeps state by row"):
        generate_stream(tiny_model(), **prompt(), num_beams=2, max_new_tokens=3, **{where: [_ByRow()]})
    generate_stream(tiny_model(), **prompt(), max_new_tokens=3, **{where: [_ByRow()]}).to()


def test_state_by_row_follows_beams_if_it_can():
    class Last(_ByRow):
        """Knows the last token of each row, because it is told where rows go."""

        def __init__(self):
            self.seen, self.moves = None, 0

        def reorder(self, parents):
            self.seen, self.moves = self.seen[parents], self.moves + 1

        def __call__(self, ids, scores, **kwargs):
            if self.seen is not None:
                assert torch.equal(self.seen, ids[:, :-1])
            self.seen = ids
            return scores

    mine = Last()
    generate_stream(tiny_model(), **prompt(2), num_beams=4, max_new_tokens=8, logits_processor=[mine]).to()
    assert mine.moves


def test_a_stream_does_not_warn_that_outputs_will_not_be_returned(said):
    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=2, output_hidden_states=True)
    assert next(stream).outputs.hidden_states
    assert not [message for message in said() if "not valid" in message]
    generate(tiny_model(), **prompt(), max_new_tokens=2, output_hidden_states=True)  # which doesn't return them
    assert [message for message in said() if "not valid" in message]
