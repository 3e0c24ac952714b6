"""Settings that change while a stream runs, and settings that differ from row to row."""

from __future__ import annotations

import pytest
import torch

from tiny import EOS, prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, generate_stream, resume
from unspool.control.commands import Update
from unspool.errors import ArgumentError, CacheError, UnsupportedError
from unspool.events import Change, Retract

PLAIN = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
SAMPLE = dict(PLAIN, do_sample=True, seed=4)


def tokens(steps):
    return [step.tokens.tolist() for step in steps]


def column(made, row):
    return [tokens[row] for tokens in made]


def stream(name="llama", rows=2, **settings):
    return generate_stream(tiny_model(name), **prompt(rows, 5), **{**PLAIN, **settings})


# ---------------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("name", ["llama", "t5", "mistral", "mamba"])
def test_new_settings_hold_from_the_next_step_on(name):
    before, after = tokens(stream(name, **SAMPLE)), stream(name, **SAMPLE)
    got = tokens(after.steps(3))
    after.update(top_k=1, repetition_penalty=1.5)
    rest = list(after)
    assert got == before[:3]
    assert all((step.scores > -torch.inf).sum(-1).tolist() == [1, 1] for step in rest)


def test_what_comes_is_what_a_run_with_these_settings_would_say_from_here():
    one = stream(rows=1)
    list(one.steps(3))
    one.update(repetition_penalty=3.0, no_repeat_ngram_size=2)
    ids = one.result.sequences
    settings = {**PLAIN, "max_new_tokens": 5, "repetition_penalty": 3.0, "no_repeat_ngram_size": 2}
    assert tokens(one) == tokens(generate_stream(tiny_model(), ids, **settings))


@pytest.mark.parametrize(("new", "left"), [(5, 2), (12, 9), (4, 1)])
def test_the_budget_can_be_made_smaller_or_larger(new, left):
    one = stream()
    list(one.steps(3))
    one.update(max_new_tokens=new)
    assert len(list(one)) == left
    assert {finish.reason for finish in one.result.finishes} == {FinishReason.MAX_LENGTH}


def test_stop_strings_can_be_set_and_text_heeds_them():
    plain = tokens(stream(rows=1))
    word = f"w{plain[5][0]}"
    one = stream(rows=1, tokenizer=tiny_tokenizer())
    view = one.text()
    chunks = [next(view)]
    one.update(stop_strings=[word])
    chunks += view
    assert one.result.finishes[0].reason is FinishReason.STOP_STRING
    assert word not in "".join(chunk.text for chunk in chunks).split()


def test_processors_and_criteria_can_be_set():
    one = stream(rows=1)
    next(one)
    one.update(
        logits_processor=[lambda ids, scores: scores.index_fill(1, torch.tensor([20]), 100.0)],
        stopping_criteria=[lambda ids, scores: ids.shape[1] > 8],
    )
    assert tokens(one) == [[20]] * 3


def test_an_end_of_sequence_id_can_be_set():
    one = stream(rows=1)
    next(one)
    one.update(eos_token_id=EOS)
    one.force(EOS)
    assert next(one).ended[0].reason is FinishReason.EOS


def test_a_rewind_undoes_an_update_and_says_so():
    whole, one = tokens(stream()), stream()
    list(one.steps(2))
    one.update(repetition_penalty=5.0)
    list(one.steps(3))
    one.rewind(4)
    events = one.events()
    assert [type(next(events)) for _ in range(2)] == [Retract, Change]
    assert tokens(one) == whole[1:]


def test_drafts_and_beams_take_new_penalties():
    for settings in (dict(prompt_lookup_num_tokens=3), dict(num_beams=2)):
        one = stream(rows=1, **settings)
        while next(one).more:
            pass
        one.update(bad_words_ids=[[token] for token in range(5, 100)])
        assert all(int(token) >= 100 or int(token) < 5 for step in one for token in step.tokens)


def test_an_update_can_be_sent():
    one = stream(rows=1)
    next(one)
    one.send(Update({"max_new_tokens": 3}))
    assert len(list(one)) == 1


# --------------------------------------------------------------------------------------------------------- per row


def test_rows_go_on_with_settings_of_their_own():
    whole, one = tokens(stream()), stream()
    got = tokens(one.steps(2))
    one.update(rows=1, repetition_penalty=4.0, max_new_tokens=6)
    got += tokens(one)
    other = stream(repetition_penalty=4.0)
    assert column(got, 0) == column(whole, 0)
    assert [finish.detail for finish in one.result.finishes] == [13, 11]
    assert column(got, 1) != column(whole, 1) or column(whole, 1) == column(tokens(other), 1)


def test_each_row_says_what_it_would_say_alone():
    given = dict(
        temperature=[0.7, 1.5, 1.0],
        top_k=[5, 50, 20],
        top_p=[1.0, 0.9, 0.5],
        min_p=[0.0, 0.05, 0.1],
        repetition_penalty=[1.0, 1.3, 2.0],
        max_new_tokens=[8, 3, 6],
        seed=[1, 2, 3],
    )
    ids = prompt(3, 5)["input_ids"]
    together = tokens(generate_stream(tiny_model(), ids, do_sample=True, eos_token_id=None, **given))
    for row in range(3):
        mine = {name: values[row] for name, values in given.items()}
        alone = tokens(generate_stream(tiny_model(), ids[row : row + 1], do_sample=True, eos_token_id=None, **mine))
        assert column(together, row)[: len(alone)] == column(alone, 0)
        assert len(alone) == given["max_new_tokens"][row]


def test_rows_have_stop_strings_of_their_own():
    plain = tokens(stream())
    words = [[f"w{plain[3][0]}"], None]
    one = stream(tokenizer=tiny_tokenizer(), stop_strings=words)
    chunks = list(one.text())
    assert [finish.reason for finish in one.result.finishes] == [FinishReason.STOP_STRING, FinishReason.MAX_LENGTH]
    assert words[0][0] not in "".join(chunk.text for chunk in chunks if chunk.row == 0).split()


def test_samples_of_a_prompt_can_have_settings_of_their_own():
    made = generate_stream(
        tiny_model(), **prompt(1, 5), do_sample=True, num_return_sequences=3, seed=[7, 7, 8], max_new_tokens=4
    )
    rows = list(zip(*tokens(made), strict=True))
    assert rows[0] == rows[1] != rows[2]


def test_settings_of_rows_are_saved_forked_and_rewound(tmp_path):
    settings = dict(do_sample=True, temperature=[0.6, 1.4], max_new_tokens=[8, 5], seed=[1, 2])
    one = stream(**settings)
    list(one.steps(3))
    one.save(tmp_path / "stream")
    [branch] = one.fork()
    again = resume(tiny_model(), tmp_path / "stream")
    rest = tokens(one)
    assert tokens(branch) == tokens(again) == rest
    other = stream(**settings)
    list(other.steps(5))
    other.rewind(2)
    assert tokens(other) == rest


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ArgumentError, {}),
        (ArgumentError, dict(temprature=1.0)),
        (ArgumentError, dict(repetition_penalty=-1.0)),
        (ArgumentError, dict(max_new_tokens=0)),
        (ArgumentError, dict(max_new_tokens="many")),
        (ArgumentError, dict(stop_strings=["x"])),
        (ArgumentError, dict(rows=0, no_repeat_ngram_size=2)),
        (ArgumentError, dict(rows=5, temperature=1.0)),
        (ArgumentError, dict(logits_processor=[1])),
        (UnsupportedError, dict(num_beams=2)),
        (UnsupportedError, dict(do_sample=True)),
    ],
)
def test_a_wrong_update_is_refused_and_nothing_changes(kind, settings):
    whole, one = tokens(stream()), stream()
    got = tokens(one.steps(2))
    with pytest.raises(kind):
        one.update(**settings)
    assert got + tokens(one) == whole


def test_a_list_that_does_not_fit_the_rows_is_refused():
    with pytest.raises(ArgumentError, match="one for each of the 2 rows"):
        next(stream(do_sample=True, temperature=[0.5]))
    with pytest.raises(ArgumentError, match="beams"):
        next(stream(num_beams=2, repetition_penalty=[1.0, 2.0]))


def test_a_cache_without_room_is_refused():
    one = stream(rows=1, cache_implementation="static")
    next(one)
    with pytest.raises(CacheError, match="room"):
        one.update(max_new_tokens=100)
    assert len(list(one)) == 7


def test_methods_that_keep_their_processors_say_so():
    one = stream(rows=1, penalty_alpha=0.6, top_k=3)
    next(one)
    with pytest.raises(UnsupportedError, match="contrastive"):
        one.update(repetition_penalty=2.0)
