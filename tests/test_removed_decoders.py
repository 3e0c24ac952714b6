"""Contrastive search, DoLa, diverse and constrained beam search: equal to the last release that had them, and streamed.

`fixtures/removed_decoders.json` holds what transformers 4.55.4 made of each case; `fixtures/record.py` recorded it.
"""

from __future__ import annotations

import functools
import itertools
import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.fixture_models import ENCODER_DECODER, VOCAB, checksum, fixture_model, prompt
from fixtures.record import RECORDED, arguments, digest, recorded_model
from tiny import tiny_model
from unspool import FinishReason, custom_generate, generate, generate_stream
from unspool.decoding.phrases import Constraint, DisjunctiveConstraint, PhrasalConstraint, Progress
from unspool.errors import ArgumentError, CriterionError, UnsupportedError

FIXTURES = json.loads(RECORDED.read_text())
METHODS = {
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "dola": {"dola_layers": "high", "repetition_penalty": 1.2},
    "diverse": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
    "constrained": {"num_beams": 3, "force_words_ids": [[9, 14], [[21], [33, 6]]]},
}
BEAMS = ("diverse", "constrained")
COMMON = {"max_new_tokens": 6, "eos_token_id": [2, 11, 30], "pad_token_id": 0, "do_sample": False}
DECODERS_OF = {
    "contrastive": ["llama", "t5"],
    "dola": ["llama"],
    "diverse": ["llama", "t5"],
    "constrained": ["gpt2", "bart"],
}
EACH = [pytest.param(method, name, id=f"{method}-{name}") for method, names in DECODERS_OF.items() for name in names]

the_model = functools.cache(recorded_model)


def asked(method, name, rows=2, **more):
    """A model and what it is called with."""
    given = prompt(rows, 6, ragged=True, right=name in ENCODER_DECODER)
    return the_model(name), {**given, **COMMON, **METHODS[method], **more}


def stacked(tensors, name):
    return torch.stack([getattr(each, name) for each in tensors])


class Counted:
    """Forwards of a model, with the rows of each."""

    def __init__(self, model):
        self.rows = []
        self._handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        ids = kwargs.get("decoder_input_ids", kwargs.get("input_ids"))
        self.rows.append(ids.shape[0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._handle.remove()


# ------------------------------------------------------------------------------------------------ the recorded cases


@pytest.mark.parametrize("name", FIXTURES["checksums"])
def test_the_fixture_models_have_the_weights_that_were_recorded(name):
    assert checksum(fixture_model(name)) == pytest.approx(FIXTURES["checksums"][name], abs=1e-5)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case['method']}-{case['model']}-{i}") for i, case in enumerate(FIXTURES["cases"])]
)
def test_results_are_those_of_the_last_release_that_had_the_method(case):
    model = the_model(case["model"])
    torch.manual_seed(0)
    made = generate(model, **arguments(case, model))
    assert made.sequences.tolist() == case["sequences"]
    if "scores" in case:
        torch.testing.assert_close(digest(torch.stack(made.scores)).tolist(), case["scores"], rtol=0, atol=1e-4)
    if "sequences_scores" in case:
        expected = torch.tensor([float(score) for score in case["sequences_scores"]])
        torch.testing.assert_close(made.sequences_scores, expected, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- streaming


@pytest.mark.parametrize(("method", "name"), EACH)
def test_steps_arrive_one_by_one_each_for_one_forward(method, name):
    model, kwargs = asked(method, name)
    ahead = 1 if method == "contrastive" else 0
    with Counted(model) as counted, generate_stream(model, **kwargs) as stream:
        assert not counted.rows
        for made, step in enumerate(itertools.islice(stream, 3), start=1):
            assert len(counted.rows) == made + ahead
            assert step.forward == step.index == made - 1
    assert len(counted.rows) == 3 + ahead


def test_low_memory_reads_candidates_one_by_one_and_gives_the_same():
    model, kwargs = asked("contrastive", "llama", rows=3)
    with Counted(model) as counted:
        slow = list(generate_stream(model, **kwargs, low_memory=True))
    assert set(counted.rows) == {3}
    assert len(counted.rows) == 1 + len(slow) * 5  # four candidates, and the one kept
    fast = list(generate_stream(model, **kwargs))
    assert torch.equal(stacked(slow, "tokens"), stacked(fast, "tokens"))
    torch.testing.assert_close(stacked(slow, "logits"), stacked(fast, "logits"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("method", "name"), EACH)
def test_the_prompt_is_read_in_one_row_per_prompt(method, name):
    model, kwargs = asked(method, name, rows=3)
    with Counted(model) as counted, generate_stream(model, **kwargs) as stream:
        next(stream)
        next(stream)
    assert counted.rows[0] == 3
    rows = {"contrastive": 12, "dola": 3, "diverse": 12, "constrained": 9}
    assert counted.rows[1] == rows[method]


@pytest.mark.parametrize(("method", "name"), EACH)
def test_generate_and_the_stream_agree(method, name):
    model, kwargs = asked(method, name, return_dict_in_generate=True, output_scores=True, output_logits=True)
    whole = generate(model, **kwargs)
    stream = generate_stream(model, **kwargs)
    steps = list(stream)
    assert torch.equal(stream.result.sequences, whole.sequences)
    torch.testing.assert_close(stacked(steps, "scores"), torch.stack(whole.scores))
    torch.testing.assert_close(stacked(steps, "logits"), torch.stack(whole.logits))
    assert len(stream.result.finishes) == whole.sequences.shape[0]
    assert stream.result.complete


@pytest.mark.parametrize(("method", "name"), [each for each in EACH if each.values[0] not in BEAMS])
def test_step_tensors_are_those_of_their_position(method, name):
    model, kwargs = asked(method, name, output_hidden_states=True)
    states = "decoder_hidden_states" if name in ENCODER_DECODER else "hidden_states"
    steps = list(generate_stream(model, **kwargs))
    ids = torch.stack([step.tokens for step in steps], dim=1)
    if name in ENCODER_DECODER:
        start = torch.full((2, 1), 3)
        whole = model(
            **prompt(2, 6, ragged=True, right=True),
            decoder_input_ids=torch.cat([start, ids], 1),
            output_hidden_states=True,
        )
    else:
        mask = torch.cat([kwargs["attention_mask"], torch.ones_like(ids)], dim=1)
        whole = model(
            torch.cat([kwargs["input_ids"], ids], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            output_hidden_states=True,
        )
    for step in steps:
        at = step.positions[-1]
        for row in step.live.nonzero().flatten().tolist():
            torch.testing.assert_close(step.logits[row], whole.logits[row, at], rtol=1e-3, atol=1e-3)
            last = step.outputs[states][-1][row, -1]
            torch.testing.assert_close(last, whole[states][-1][row, at], rtol=1e-3, atol=1e-3)
        assert step.outputs[states][-1].shape[1] == len(step.positions)


@pytest.mark.parametrize(("method", "name"), EACH)
@pytest.mark.parametrize("asked_for", [False, True])
def test_hidden_states_are_shown_only_if_asked_for(method, name, asked_for):
    model, kwargs = asked(method, name, output_hidden_states=asked_for)
    states = "decoder_hidden_states" if name in ENCODER_DECODER else "hidden_states"
    for step in generate_stream(model, **kwargs):
        assert (step.outputs.get(states) is not None) == asked_for


@pytest.mark.parametrize(("method", "name"), EACH)
def test_leaving_early_gives_what_there_is(method, name):
    model, kwargs = asked(method, name)
    with generate_stream(model, **kwargs) as stream:
        steps = list(itertools.islice(stream, 2))
    result = stream.result
    assert result.sequences.shape[1] == result.prompt_length + 2
    assert {finish.reason for finish in result.finishes} <= {FinishReason.STOPPED, FinishReason.EOS}
    if method not in BEAMS:
        assert torch.equal(result.tokens, torch.stack([step.tokens for step in steps], dim=1))


@pytest.mark.parametrize(("method", "name"), EACH)
def test_the_door_in_transformers_leads_to_the_same(method, name):
    model, kwargs = asked(method, name, repetition_penalty=1.3, prefix_allowed_tokens_fn=lambda *_: range(1, VOCAB))
    stream = model.generate(**kwargs, custom_generate=custom_generate)
    list(stream)
    assert torch.equal(stream.result.sequences, generate(model, **kwargs))


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("steps", [2, 6])
def test_contrastive_search_leaves_a_cache_that_can_be_continued(low_memory, steps):
    model, kwargs = asked("contrastive", "llama", eos_token_id=None, low_memory=low_memory)
    with generate_stream(model, **kwargs, return_dict_in_generate=True) as stream:
        list(itertools.islice(stream, steps))
    ids, cache = stream.result.sequences, stream.result.cache
    assert cache.get_seq_length() == ids.shape[1] - 1
    mask = torch.cat([kwargs["attention_mask"], torch.ones(2, steps, dtype=torch.int64)], dim=1)
    more = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    assert torch.equal(generate(model, **more, cache=cache), generate(model, **more))


def test_contrastive_search_compares_with_all_chunks_of_a_prompt():
    model, kwargs = asked("contrastive", "llama")
    assert torch.equal(generate(model, **kwargs, prefill_chunk_size=2), generate(model, **kwargs))


def test_dola_draws_in_the_order_of_transformers_or_from_a_seed_of_its_own():
    model, kwargs = asked("dola", "llama")
    kwargs |= {"do_sample": True, "temperature": 2.0}
    drawn = generate(model, **kwargs, seed=5)
    torch.manual_seed(5)
    assert torch.equal(generate(model, **kwargs), drawn)


def test_dola_samples_share_one_reading_of_the_prompt():
    model, kwargs = asked("dola", "llama", rows=1)
    kwargs |= {"do_sample": True, "temperature": 50.0, "num_return_sequences": 4}
    with Counted(model) as counted:
        answers = generate(model, **kwargs, seed=1)
    assert counted.rows[:2] == [1, 4]
    assert len({tuple(row) for row in answers.tolist()}) > 1


# ------------------------------------------------------------------------------------------------------------- beams


def searches(method):
    """Random searches of a kind."""
    common = {
        "name": st.sampled_from(["llama", "t5"]),
        "rows": st.sampled_from([1, 3]),
        "seed": st.integers(0, 10_000),
        "eos": st.lists(st.integers(4, VOCAB - 1), min_size=1, max_size=8, unique=True),
        "length_penalty": st.floats(-2.0, 2.0),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "share": st.floats(0.0, 1.0),
        "steps": st.integers(1, 10),
    }
    if method == "diverse":
        common |= {"groups": st.integers(2, 4), "size": st.integers(1, 3), "penalty": st.floats(0.01, 5.0)}
    else:
        word = st.lists(st.integers(4, VOCAB - 1), min_size=1, max_size=3)
        common |= {"size": st.integers(2, 6), "words": st.lists(word, min_size=1, max_size=2)}
    return st.fixed_dictionaries(common)


def searched(method, drawn):
    """The steps and the result of one search."""
    if method == "diverse":
        beams = drawn["groups"] * drawn["size"]
        kwargs = {"num_beam_groups": drawn["groups"], "diversity_penalty": drawn["penalty"]}
    else:
        beams = drawn["size"]
        kwargs = {"force_words_ids": drawn["words"]}
    room = max(drawn["steps"], sum(map(len, drawn.get("words", ()))))
    stream = generate_stream(
        the_model(drawn["name"]),
        **prompt(drawn["rows"], 5, seed=drawn["seed"]),
        **kwargs,
        num_beams=beams,
        num_return_sequences=max(1, round(drawn["share"] * beams)),
        length_penalty=drawn["length_penalty"],
        early_stopping=drawn["early_stopping"],
        eos_token_id=drawn["eos"],
        pad_token_id=0,
        max_new_tokens=room,
        do_sample=False,
    )
    return list(stream), stream.result


MANY = [25, pytest.param(300, marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", MANY)
@pytest.mark.parametrize("method", BEAMS)
def test_agreed_is_a_prefix_of_all_that_is_returned_and_only_grows(method, examples):
    @settings(max_examples=examples, deadline=None)
    @given(searches(method))
    def check(drawn):
        steps, result = searched(method, drawn)
        per_prompt = len(result.finishes) // drawn["rows"]
        before = [()] * drawn["rows"]
        for step in steps:
            agreed = step.beams.agreed
            for index, (old, new) in enumerate(zip(before, agreed, strict=True)):
                assert new[: len(old)] == old
                for row in result.sequences[index * per_prompt : (index + 1) * per_prompt].tolist():
                    assert tuple(row[: len(new)]) == new
            before = agreed
        assert steps[-1].beams.settled.all()

    check()


@pytest.mark.parametrize("examples", MANY)
@pytest.mark.parametrize("method", BEAMS)
def test_parents_and_tokens_rebuild_each_sequence_and_scores_its_score(method, examples):
    @settings(max_examples=examples, deadline=None)
    @given(searches(method))
    def check(drawn):
        steps, result = searched(method, drawn)
        # Scores of constrained beams are cumulative, as they were in transformers.
        cumulative = method == "constrained"
        for row, (ids, choices) in enumerate(zip(result.tokens, result.beam_indices.long(), strict=True)):
            length = int((choices >= 0).sum())
            chosen = [steps[i].scores[choices[i], ids[i]].item() for i in range(length)]
            by_eos = result.finishes[row].reason is FinishReason.EOS
            if by_eos:  # the first of several ids stands for any of them
                chosen[-1] = steps[length - 1].scores[choices[length - 1], result.finishes[row].detail].item()
            total = chosen[-1] if cumulative else sum(chosen)
            assert result.sequences_scores[row].item() == pytest.approx(
                total / length ** drawn["length_penalty"], rel=1e-3, abs=1e-3
            )
            for i in range(1, length):
                assert steps[i - 1].beams.tokens[choices[i]] == ids[i - 1]
                assert steps[i - 1].beams.parents[choices[i]] == choices[i - 1]

    check()


@pytest.mark.parametrize(("method", "name"), [each for each in EACH if each.values[0] in BEAMS])
def test_beam_tensors_are_in_the_order_before_the_step_and_parents_map_them(method, name):
    model, kwargs = asked(method, name, rows=1, eos_token_id=None)
    ids = None
    for step in generate_stream(model, **kwargs):
        beams = step.beams.ids.flatten(0, 1)
        assert torch.equal(beams[:, -1], step.tokens)
        if ids is not None:
            assert torch.equal(beams[:, :-1], ids[step.beams.parents])
        ids = beams


def test_a_group_that_is_over_doesn_t_hold_up_what_is_agreed():
    """Its rows go on with something else, but neither count as live nor as what may be returned."""
    model, kwargs = asked("diverse", "llama", rows=2, eos_token_id=list(range(4, 24)), num_beam_groups=2)
    partly = 0
    for seed in range(10):
        kwargs |= prompt(2, 6, seed=seed)
        for step in generate_stream(model, **kwargs, early_stopping=True):
            over = step.beams.settled.repeat_interleave(4) | step.beams.idle
            assert torch.equal(step.live, ~over)
            for index, agreed in enumerate(step.beams.agreed):
                idle = step.beams.idle[index * 4 : index * 4 + 4]
                if idle.any() and not idle.all():
                    partly += 1
                    assert agreed[:6] == tuple(kwargs["input_ids"][index].tolist())
    assert partly


def test_diverse_groups_avoid_each_other():
    model, kwargs = asked("diverse", "llama", rows=1, diversity_penalty=50.0, num_beam_groups=4, eos_token_id=None)
    for step in generate_stream(model, **kwargs):
        assert len(set(step.tokens.tolist())) == 4


def test_processors_that_take_groups_are_told_of_them():
    seen = []

    class Nosy(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores, current_tokens, beam_group_idx):
            seen.append((beam_group_idx, input_ids.shape[0], current_tokens.shape[0]))
            return scores

    model, kwargs = asked("diverse", "llama", rows=3, max_new_tokens=1)
    generate(model, **kwargs, logits_processor=[Nosy()])
    assert seen == [(0, 6, 12), (1, 6, 12)]


def test_a_processor_that_returns_another_shape_is_named():
    model, kwargs = asked("diverse", "llama")
    with pytest.raises(CriterionError, match="function must return scores of shape"):
        generate(model, **kwargs, logits_processor=[type("function", (), {"__call__": lambda *a: a[2][:, :3]})()])


# ----------------------------------------------------------------------------------------------------------- phrases


def says(ids, phrase):
    return any(ids[i : i + len(phrase)] == phrase for i in range(len(ids)))


def test_constrained_sequences_contain_their_phrases():
    model = the_model("llama")
    kwargs = {**prompt(2, 6), **COMMON, "num_beams": 4, "max_new_tokens": 12}
    phrase, either = PhrasalConstraint([9, 14, 22]), DisjunctiveConstraint([[21, 8], [33]])
    for row in generate(model, **kwargs, constraints=[phrase, either]).tolist():
        assert says(row, [9, 14, 22])
        assert says(row, [21, 8]) or says(row, [33])


def test_words_and_constraints_ask_for_the_same_and_may_be_asked_for_again():
    model, kwargs = asked("constrained", "gpt2")
    words = kwargs.pop("force_words_ids")
    constraints = [PhrasalConstraint(words[0]), DisjunctiveConstraint(words[1])]
    by_words = generate(model, **kwargs, force_words_ids=words)
    for _ in range(2):
        assert torch.equal(generate(model, **kwargs, constraints=constraints), by_words)


def test_constraints_of_the_caller_s_own_are_followed():
    class Ends(Constraint):
        """One of some tokens."""

        seqlen = 1

        def __init__(self, tokens):
            self.tokens = tokens

        def advance(self):
            return None if self.completed else list(self.tokens)

        def does_advance(self, token_id):
            return not self.completed and token_id in self.tokens

        def update(self, token_id):
            self.completed = self.does_advance(token_id)
            return self.completed, self.completed, not self.completed

        def reset(self):
            self.completed = False

        def remaining(self):
            return 0 if self.completed else 1

        def copy(self, stateful=False):
            twin = Ends(self.tokens)
            twin.completed = stateful and self.completed
            return twin

    model, kwargs = asked("constrained", "gpt2", force_words_ids=None)
    asked_by_words = generate(model, **kwargs | {"force_words_ids": [[[21], [33]]]})
    assert torch.equal(generate(model, **kwargs, constraints=[Ends([21, 33])]), asked_by_words)


def test_progress_works_on_one_phrase_at_a_time():
    progress = Progress([PhrasalConstraint([5, 6]), PhrasalConstraint([7])])
    assert progress.wanted() == [5, 7]
    assert (progress.after([5]).wanted(), progress.bank(), progress.missing()) == ([6], 1, 2)
    assert (progress.after([7]).wanted(), progress.bank()) == ([7, 5], 0)  # thrown back; 7 itself isn't read again
    assert progress.after([7, 5, 6]).completed
    assert (progress.bank(), progress.wanted(), progress.missing()) == (4, [], 0)


# --------------------------------------------------------------------------------------------------------- bad input

DIVERSE, CONTRASTIVE, WORDS = METHODS["diverse"], METHODS["contrastive"], METHODS["constrained"]
WRONG = {
    "groups that don't divide the beams": (dict(DIVERSE, num_beams=5), "num_beam_groups=2 doesn't divide num_beams=5"),
    "more groups than beams": (dict(DIVERSE, num_beams=2, num_beam_groups=4), "doesn't divide"),
    "groups without beams": (dict(DIVERSE, num_beams=1), "doesn't divide num_beams=1"),
    "groups that draw": (dict(DIVERSE, do_sample=True), "do_sample=True doesn't go with num_beam_groups"),
    "groups without a penalty": (dict(num_beams=4, num_beam_groups=2), "diversity_penalty=0.0 would make all groups"),
    "a negative penalty": (dict(DIVERSE, diversity_penalty=-1.0), "a positive number"),
    "a penalty without groups": (dict(num_beams=4, diversity_penalty=1.0), "between groups of beams"),
    "more sequences than beams": (dict(DIVERSE, num_return_sequences=5), "num_return_sequences"),
    "constraints without beams": (dict(WORDS, num_beams=1), "num_beams of 2 or more"),
    "constraints that draw": (dict(WORDS, do_sample=True), "do_sample=True doesn't go with constraints"),
    "constraints and groups": (dict(WORDS, num_beam_groups=3), "doesn't go with constraints"),
    "constraints longer than the limit": (dict(WORDS, max_new_tokens=2), "at least 3 tokens, but there is room for 2"),
    "no words": (dict(num_beams=3, force_words_ids=[]), "nothing to say"),
    "an empty phrase": (dict(num_beams=3, force_words_ids=[[]]), "is no phrase"),
    "a phrase of strings": (dict(num_beams=3, force_words_ids=[["a"]]), "is no phrase"),
    "a negative id": (dict(num_beams=3, force_words_ids=[[-1]]), "not negative"),
    "an id too large": (dict(num_beams=3, force_words_ids=[[VOCAB]]), f"vocabulary has {VOCAB} ids"),
    "a phrase that begins another": (dict(num_beams=3, force_words_ids=[[[5], [5, 6]]]), "leave the other out"),
    "something else as a constraint": (dict(num_beams=3, constraints=["word"]), "is no constraint"),
    "one candidate": (dict(CONTRASTIVE, top_k=1), "top_k=1 leaves contrastive search"),
    "no candidates": (dict(CONTRASTIVE, top_k=0), "top_k=0"),
    "candidates without a cache": (dict(CONTRASTIVE, use_cache=False), "leave out use_cache=False"),
    "layers by another word": (dict(dola_layers="middle"), "'low', 'high' or a list"),
    "layers by strings": (dict(dola_layers=["1"]), "'low', 'high' or a list"),
    "layers that aren't there": (dict(dola_layers=[6, 99]), "leaves no layer"),
    "low memory without candidates": (dict(num_beams=2, low_memory=True), "low_memory=True is not supported"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings_are_refused_at_the_call(wrong):
    kwargs, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message) as caught:
        generate_stream(the_model("llama"), **prompt(1, 4), **{"max_new_tokens": 6, "eos_token_id": 2} | kwargs)
    assert wrong == "more sequences than beams" or isinstance(caught.value, ArgumentError)


UNABLE = {
    "DoLa on an encoder-decoder": ("t5", METHODS["dola"], "DoLa contrasts the layers of decoder-only models"),
    "DoLa on a recurrent model": ("mamba", METHODS["dola"], "recurrent"),
    "contrastive search on a recurrent model": ("mamba", CONTRASTIVE, "a cache that candidates can share"),
    "contrastive search on a hybrid": ("recurrent_gemma", CONTRASTIVE, "a cache that candidates can share"),
    "contrastive search in a static cache": (
        "llama",
        dict(CONTRASTIVE, cache_implementation="static"),
        "needs a dynamic cache, not a static",
    ),
}


@pytest.mark.parametrize("unable", UNABLE)
def test_what_a_model_can_t_do_is_refused_at_the_call(unable):
    name, kwargs, message = UNABLE[unable]
    with pytest.raises(UnsupportedError, match=message):
        generate_stream(tiny_model(name), torch.tensor([[5, 6, 7]]), max_new_tokens=4, **kwargs)


def test_a_cache_that_holds_some_of_the_prompt_is_refused_for_contrastive_search():
    model, kwargs = asked("contrastive", "llama")
    cache = transformers.DynamicCache(config=model.config)
    model(kwargs["input_ids"][:, :3], use_cache=True, **{generate_cache_name(): cache})
    with pytest.raises(ArgumentError, match="holds 3 positions of it"):
        generate_stream(model, **kwargs, cache=cache)


def generate_cache_name():
    from unspool import bridge

    return bridge.CACHE


def test_a_phrase_in_the_prompt_takes_no_room():
    model, kwargs = asked("constrained", "gpt2", rows=1, force_words_ids=[[9, 14]], max_new_tokens=1)
    kwargs |= {"input_ids": torch.tensor([[5, 9, 14, 6]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    assert generate(model, **kwargs).shape == (1, 5)
