"""Every row ends once, with one reason and its detail, at the step where transformers ends it."""

from __future__ import annotations

import functools
import itertools
import string
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import (
    EosTokenCriteria,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from tiny import ENCODER_DECODER, PAD, VOCAB, prompt, tiny_model
from unspool import Finish, FinishReason, generate, generate_stream

NEW, ROWS, LENGTH = 8, 3, 9
RAGGED = prompt(ROWS, LENGTH, ragged=True)
GREEDY = dict(RAGGED, do_sample=False, max_new_tokens=NEW)


@functools.cache
def letters():
    """A tokenizer whose ids are single letters and pairs of letters, so that strings run across tokens."""
    pairs = ("".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2))
    words = ["<pad>", "<s>", "</s>", "<start>", *string.ascii_lowercase, *itertools.islice(pairs, 37, None, 4)][:VOCAB]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<pad>"))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@functools.cache
def free_run(name="llama"):
    """What each row says when nothing ends it before `NEW` tokens: ids, by row and step."""
    return tiny_model(name).generate(**GREEDY, eos_token_id=None)[:, -NEW:].tolist()


def piece(row, step):
    return letters().decode([free_run()[row][step]])


def watched(stream):
    """Runs a stream and checks its books: each row ends once, and is live exactly up to the step where it ends.

    Returns:
        For each row the step at which it ended, and how.
    """
    ended, live = {}, torch.ones(ROWS, dtype=torch.bool)
    for step in stream:
        live = live if live.shape == step.live.shape else torch.ones_like(step.live)
        assert torch.equal(step.live, live)
        assert live.any()
        for row, finish in step.ended.items():
            assert live[row]
            assert row not in ended
            ended[row] = (step.index, finish)
        live = live.clone()
        live[list(step.ended)] = False
    assert not live.any()
    assert stream.result.complete
    assert stream.result.finishes == tuple(finish for _, (_, finish) in sorted(ended.items()))
    return [ended[row] for row in sorted(ended)]


def assert_agree(stream, **asked):
    assert torch.equal(stream.result.sequences, tiny_model("llama").generate(**asked))


class EndsAt(StoppingCriteria):
    """Ends each row once it has so many new tokens; None for never."""

    def __init__(self, *counts):
        self.counts = counts

    def __call__(self, input_ids, scores, **kwargs):
        new = input_ids.shape[1] - LENGTH
        return torch.tensor([count is not None and new >= count for count in self.counts])


# ------------------------------------------------------------------------------------- each kind by itself


def test_an_end_id_ends_its_row_and_is_the_detail(llama):
    end = free_run()[1][2]
    asked = dict(GREEDY, eos_token_id=end)
    stream = generate_stream(llama, **asked)
    assert watched(stream)[1] == (2, Finish(FinishReason.EOS, end))
    assert_agree(stream, **asked)


def test_of_several_end_ids_the_one_that_came_is_the_detail(llama):
    ends = [free_run()[row][row + 1] for row in range(ROWS)]
    asked = dict(GREEDY, eos_token_id=ends)
    stream = generate_stream(llama, **asked)
    for row, (step, finish) in enumerate(watched(stream)):
        assert finish == Finish(FinishReason.EOS, next(i for i in free_run()[row] if i in ends))
        assert free_run()[row][step] == finish.detail
    assert_agree(stream, **asked)


@pytest.mark.parametrize("name", ["llama", *ENCODER_DECODER])
def test_max_new_tokens_ends_all_rows_and_the_whole_length_is_the_detail(name):
    length = 1 if name in ENCODER_DECODER else LENGTH
    stream = generate_stream(tiny_model(name), **GREEDY, eos_token_id=None)
    assert watched(stream) == [(NEW - 1, Finish(FinishReason.MAX_LENGTH, length + NEW))] * ROWS


@pytest.mark.parametrize("name", ["llama", *ENCODER_DECODER])
def test_max_length_counts_the_prompt(name):
    length = 1 if name in ENCODER_DECODER else LENGTH
    stream = generate_stream(tiny_model(name), **RAGGED, do_sample=False, max_length=length + 2, eos_token_id=None)
    assert watched(stream) == [(1, Finish(FinishReason.MAX_LENGTH, length + 2))] * ROWS


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves one second with each token."""
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def tick(ids, scores):
        now[0] += 1
        return scores

    return tick


def test_max_time_ends_all_rows_at_the_step_after_it_is_up(llama, clock):
    asked = dict(GREEDY, max_time=2.5, logits_processor=[clock], eos_token_id=None)
    stream = generate_stream(llama, **asked)
    assert watched(stream) == [(2, Finish(FinishReason.MAX_TIME, 2.5))] * ROWS
    assert_agree(stream, **asked)


STOP_STRINGS = {
    "a whole token": lambda: piece(0, 2),
    "across tokens": lambda: piece(0, 2)[-1] + piece(0, 3)[0],
    "over three tokens": lambda: piece(0, 2)[-1] + piece(0, 3) + piece(0, 4)[0],
    "inside a token": lambda: next(piece(0, step)[0] for step in range(2, NEW) if len(piece(0, step)) == 2),
    "from the prompt on": lambda: letters().decode(RAGGED["input_ids"][0, -1:])[-1] + piece(0, 0)[0],
}


@pytest.mark.parametrize("case", STOP_STRINGS)
def test_a_stop_string_ends_the_rows_that_say_it_and_is_the_detail(llama, case):
    stop = STOP_STRINGS[case]()
    asked = dict(GREEDY, stop_strings=stop, tokenizer=letters(), eos_token_id=2)
    stream = generate_stream(llama, **asked)
    ended = watched(stream)
    assert ended[0][1] == Finish(FinishReason.STOP_STRING, stop)
    for row, (step, finish) in enumerate(ended):
        said = letters().decode(stream.result.sequences[row, : LENGTH + step + 1])
        assert (finish.reason == FinishReason.STOP_STRING) == (stop in said[-len(piece(row, step)) - len(stop) + 1 :])
    assert_agree(stream, **asked)


def test_of_several_stop_strings_the_one_that_was_said_is_the_detail(llama):
    stops = [piece(row, 2)[-1] + piece(row, 3) for row in range(ROWS)]
    asked = dict(GREEDY, stop_strings=stops, tokenizer=letters(), eos_token_id=2)
    stream = generate_stream(llama, **asked)
    for row, (step, finish) in enumerate(watched(stream)):
        assert finish == Finish(FinishReason.STOP_STRING, stops[row])
        assert step <= 3
    assert_agree(stream, **asked)


def test_a_stop_string_in_the_prompt_is_not_the_one_that_ended_the_row(llama):
    in_prompt = letters().decode(RAGGED["input_ids"][0, 2:4])
    stop = piece(0, 2)[-1] + piece(0, 3)
    asked = dict(GREEDY, stop_strings=[in_prompt, stop], tokenizer=letters(), eos_token_id=2)
    stream = generate_stream(llama, **asked)
    assert watched(stream)[0] == (3, Finish(FinishReason.STOP_STRING, stop))
    assert_agree(stream, **asked)


def test_of_two_stop_strings_in_one_token_the_earlier_is_the_detail(llama):
    """The text ends before the earlier one, so that is what ended the row."""
    row, step = next(
        (row, step)
        for row, step in itertools.product(range(ROWS), range(NEW))
        if len(set(piece(row, step))) == 2 and not set(piece(row, step)) & set(letters().decode(free_run()[row][:step]))
    )
    first, last = piece(row, step)
    for stops in ([first, last], [last, first]):
        stream = generate_stream(llama, **GREEDY, stop_strings=stops, tokenizer=letters(), eos_token_id=2)
        assert watched(stream)[row] == (step, Finish(FinishReason.STOP_STRING, first))


def test_stop_strings_may_come_from_the_models_own_config(llama):
    llama.generation_config.stop_strings = stop = [piece(0, 2)[-1] + piece(0, 3)]
    stream = generate_stream(llama, **GREEDY, tokenizer=letters())
    assert watched(stream)[0] == (3, Finish(FinishReason.STOP_STRING, stop[0]))


# ------------------------------------------------------------------------------------------------- criteria


@pytest.mark.parametrize("kind", [list, StoppingCriteriaList])
def test_a_criterion_ends_each_row_by_itself_and_is_the_detail(llama, kind):
    criterion = EndsAt(3, None, 1)
    asked = dict(GREEDY, stopping_criteria=kind([criterion]))
    stream = generate_stream(llama, **asked)
    ended = watched(stream)
    assert ended[0] == (2, Finish(FinishReason.CRITERION, criterion))
    assert ended[1] == (NEW - 1, Finish(FinishReason.MAX_LENGTH, LENGTH + NEW))
    assert ended[2] == (0, Finish(FinishReason.CRITERION, criterion))
    assert_agree(stream, **asked)


ANSWERS = {
    "a bool": lambda ids: ids.shape[1] >= LENGTH + 2,
    "a tensor without dimensions": lambda ids: torch.tensor(ids.shape[1] >= LENGTH + 2),
    "a tensor of ints": lambda ids: torch.full((ids.shape[0],), int(ids.shape[1] >= LENGTH + 2)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_criterion_may_be_a_function_and_answer_for_all_rows(llama, answer):
    def criterion(ids, scores, **kwargs):
        return ANSWERS[answer](ids)

    stream = generate_stream(llama, **GREEDY, stopping_criteria=[criterion])
    assert watched(stream) == [(1, Finish(FinishReason.CRITERION, criterion))] * ROWS


def test_criteria_are_asked_once_a_step_with_all_ids(llama):
    lengths = []

    def criterion(ids, scores, **kwargs):
        lengths.append(tuple(ids.shape))
        return False

    list(generate_stream(llama, **GREEDY, stopping_criteria=[criterion]))
    assert lengths == [(ROWS, LENGTH + count) for count in range(1, NEW + 1)]


@pytest.mark.parametrize("outputs", [{}, dict(return_dict_in_generate=True, output_scores=True)])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_criteria_are_shown_the_scores_that_transformers_shows_them(name, outputs):
    shown = []

    def note(ids, scores, **kwargs):
        shown.append(None if scores is None else torch.stack(scores))
        return torch.zeros(ids.shape[0], dtype=torch.bool)

    asked = dict(GREEDY, max_new_tokens=4, repetition_penalty=1.5, stopping_criteria=[note], **outputs)
    tiny_model(name).generate(**asked)
    expected = list(shown)
    shown.clear()
    generate(tiny_model(name), **asked)
    assert len(shown) == 4
    torch.testing.assert_close(shown, expected)
    assert (shown[-1] is None) == (not outputs)


def test_a_criterion_can_end_rows_by_their_scores(llama):
    wanted = torch.tensor([free_run()[row][row + 1] for row in range(ROWS)])

    def likeliest(ids, scores, **kwargs):
        return torch.isin(scores[-1].argmax(-1), wanted)

    asked = dict(GREEDY, stopping_criteria=[likeliest], return_dict_in_generate=True, output_scores=True)
    made, expected = generate(llama, **asked), llama.generate(**asked)
    assert torch.equal(made.sequences, expected.sequences)
    assert made.sequences.shape[1] < LENGTH + NEW


@pytest.mark.parametrize(
    ("criterion", "finish"),
    [
        (MaxLengthCriteria(LENGTH + 2), (1, Finish(FinishReason.MAX_LENGTH, LENGTH + 2))),
        (EosTokenCriteria(list(range(VOCAB))), (0, FinishReason.EOS)),
    ],
    ids=["length", "end ids"],
)
def test_a_criterion_of_transformers_kind_takes_the_place_of_its_own(llama, criterion, finish):
    asked = dict(GREEDY, stopping_criteria=[criterion])
    stream = generate_stream(llama, **asked)
    ended = watched(stream)
    assert all(step == finish[0] and finish[1] in (how, how.reason) for step, how in ended)
    assert_agree(stream, **asked)


def test_a_criterion_with_a_kind_of_its_own_stands_beside_transformers(llama):
    class Shorter(MaxLengthCriteria):
        pass

    stream = generate_stream(llama, **GREEDY, stopping_criteria=[Shorter(LENGTH + 2)])
    assert watched(stream) == [(1, Finish(FinishReason.MAX_LENGTH, LENGTH + 2))] * ROWS


# --------------------------------------------------------------------------------------- several at a time


def test_rows_end_for_different_reasons_in_one_run(llama):
    end, stop = free_run()[0][2], piece(1, 3)[-1] + piece(1, 4)
    criterion = EndsAt(None, None, 2)
    asked = dict(GREEDY, eos_token_id=end, stop_strings=[stop], tokenizer=letters(), stopping_criteria=[criterion])
    stream = generate_stream(llama, **asked)
    assert watched(stream) == [
        (2, Finish(FinishReason.EOS, end)),
        (4, Finish(FinishReason.STOP_STRING, stop)),
        (1, Finish(FinishReason.CRITERION, criterion)),
    ]
    assert_agree(stream, **asked)


@pytest.mark.parametrize(
    ("also", "reason"),
    [
        (dict(max_new_tokens=3), FinishReason.EOS),
        (dict(max_time=2.5), FinishReason.EOS),
        (dict(stopping_criteria=[EndsAt(3, 3, 3)]), FinishReason.EOS),
    ],
    ids=["length", "time", "criterion"],
)
def test_a_row_that_says_its_end_id_just_when_a_limit_is_reached_has_come_to_its_end(llama, clock, also, reason):
    end = free_run()[0][2]
    asked = {**GREEDY, "eos_token_id": end, "logits_processor": [clock], **also}
    assert watched(generate_stream(llama, **asked))[0] == (2, Finish(reason, end))


def test_a_row_that_says_a_stop_string_just_when_a_limit_is_reached_was_stopped_by_it(llama):
    stop = piece(0, 1)[-1] + piece(0, 2)
    stream = generate_stream(
        llama, **{**GREEDY, "max_new_tokens": 3}, stop_strings=stop, tokenizer=letters(), eos_token_id=None
    )
    assert watched(stream)[0] == (2, Finish(FinishReason.STOP_STRING, stop))


@given(
    ends=st.lists(st.sampled_from(sorted({i for row in free_run() for i in row})), max_size=4, unique=True),
    counts=st.lists(st.none() | st.integers(1, NEW), min_size=ROWS, max_size=ROWS),
    stops=st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=2), max_size=3),
    new=st.integers(1, NEW),
)
@settings(max_examples=40, deadline=None)
def test_any_endings_come_where_they_should(ends, counts, stops, new):
    criterion = EndsAt(*counts)
    asked = dict(GREEDY, max_new_tokens=new, eos_token_id=ends or None, stopping_criteria=[criterion])
    if stops:
        asked |= dict(stop_strings=stops, tokenizer=letters())
    stream = generate_stream(tiny_model("llama"), **asked)
    for row, (step, finish) in enumerate(watched(stream)):
        for index in range(step + 1):
            reasons = set()
            if free_run()[row][index] in ends:
                reasons.add(Finish(FinishReason.EOS, free_run()[row][index]))
            if counts[row] is not None and index + 1 >= counts[row]:
                reasons.add(Finish(FinishReason.CRITERION, criterion))
            if index + 1 == new:
                reasons.add(Finish(FinishReason.MAX_LENGTH, LENGTH + new))
            said = letters().decode([*RAGGED["input_ids"][row].tolist(), *free_run()[row][: index + 1]])
            width = len(piece(row, index))
            for stop in stops:
                if stop in said[-width - len(stop) + 1 :]:
                    reasons.add(Finish(FinishReason.STOP_STRING, stop))
            assert bool(reasons) == (index == step)
        assert finish in reasons
    assert_agree(stream, **asked)


@pytest.mark.parametrize("samples", [1, 3])
def test_samples_of_one_prompt_end_one_by_one(llama, samples):
    asked = dict(
        RAGGED, do_sample=True, max_new_tokens=20, eos_token_id=list(range(4, 24)), num_return_sequences=samples
    )
    torch.manual_seed(0)
    stream = generate_stream(llama, **asked)
    ended = watched(stream)
    torch.manual_seed(0)
    assert_agree(stream, **asked)
    assert len(ended) == ROWS * samples
    for row, (step, finish) in enumerate(ended):
        new = stream.result.tokens[row].tolist()
        assert not any(4 <= token < 24 for token in new[:step])
        assert finish.reason == (FinishReason.EOS if 4 <= new[step] < 24 else FinishReason.MAX_LENGTH)


# -------------------------------------------------------------------------------------- what ended rows hold


def test_rows_that_have_ended_hold_the_pad_id(llama):
    stream = generate_stream(llama, **GREEDY, eos_token_id=free_run()[0][2])
    tokens = [int(step.tokens[0]) for step in stream]
    assert tokens[:3] == free_run()[0][:3]
    assert tokens[3:] == [PAD] * (len(tokens) - 3)


def test_without_a_pad_id_rows_that_have_ended_hold_the_end_id(llama):
    llama.config.pad_token_id = llama.generation_config.pad_token_id = None
    end = free_run()[0][2]
    stream = generate_stream(llama, **GREEDY, eos_token_id=[end, 2])
    tokens = [int(step.tokens[0]) for step in stream]
    assert tokens[3:] == [end] * (len(tokens) - 3)


def test_where_no_end_id_is_set_rows_that_have_ended_go_on_in_the_ids_alone(llama):
    asked = dict(GREEDY, eos_token_id=None, stopping_criteria=[EndsAt(2, None, None)])
    stream = generate_stream(llama, **asked)
    assert watched(stream)[0][0] == 1
    assert stream.result.tokens[0].tolist() == free_run()[0]
    assert_agree(stream, **asked)


def test_an_end_id_in_the_prompt_ends_nothing(llama):
    end = int(RAGGED["input_ids"][0, -1])
    stream = generate_stream(llama, **GREEDY, eos_token_id=end)
    assert all(step > 0 for step, _ in watched(stream))
    assert_agree(stream, **GREEDY, eos_token_id=end)


# -------------------------------------------------------------------------------------------- other endings


@pytest.mark.parametrize("leave", ["close", "with", "break and close"])
def test_rows_that_are_live_when_the_stream_is_left_were_stopped(llama, leave):
    end = free_run()[0][1]
    stream = generate_stream(llama, **GREEDY, eos_token_id=end)
    if leave == "with":
        with stream:
            next(stream), next(stream)
    else:
        for step in stream:
            if step.index == 1:
                break
        stream.close()
    assert stream.result.finishes[0] == Finish(FinishReason.EOS, end)
    assert stream.result.finishes[1] == Finish(FinishReason.STOPPED)
    assert not stream.result.complete
    assert stream.result.tokens.tolist() == [ids[:2] for ids in free_run()]


def test_the_result_so_far_can_be_read_between_steps(llama):
    end = free_run()[0][1]
    stream = generate_stream(llama, **GREEDY, eos_token_id=end)
    assert stream.result is None
    next(stream)
    assert stream.result.finishes == (Finish(FinishReason.STOPPED),) * ROWS
    next(stream)
    assert stream.result.finishes[0] == Finish(FinishReason.EOS, end)


def test_a_finished_stream_stays_finished(llama):
    stream = generate_stream(llama, **GREEDY)
    list(stream)
    before = stream.result
    assert next(stream, None) is None
    stream.close()
    assert stream.result is before
    assert before.complete


def test_a_criterion_keeps_nothing_of_one_call_for_the_next(llama):
    asked = dict(GREEDY, max_time=1e9, stop_strings=["zz"], tokenizer=letters(), stopping_criteria=[EndsAt(2, 3, 4)])
    assert torch.equal(generate(llama, **asked), generate(llama, **asked))
