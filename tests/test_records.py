"""Records are facts about a run: frozen, and what they derive is derived when it is read."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unspool import plan, records
from unspool.records import Beams, Finish, FinishReason, Result, Step

RECORDS = [
    kind
    for module in (records, plan)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_records_are_frozen_and_have_slots(kind):
    assert kind.__dataclass_params__.frozen
    assert hasattr(kind, "__slots__")


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_records_say_what_each_attribute_is(kind):
    text = kind.__doc__ + "".join(vars(kind).get("__annotations__", ()) if kind is plan.Request else ())
    assert all(f.name in text for f in dataclasses.fields(kind))


def step(scores, tokens, beams=None):
    scores = torch.tensor(scores)
    live = torch.ones(len(tokens), dtype=torch.bool)
    return Step(0, 0, torch.tensor(tokens), live, scores, scores, None, range(1), beams=beams)


def test_logprobs_are_those_of_the_chosen_tokens():
    made = step([[0.0, 1.0, 2.0], [5.0, 0.0, -1.0]], [2, 0])
    expected = torch.log_softmax(made.scores, dim=-1)[torch.arange(2), made.tokens]
    assert torch.equal(made.logprobs, expected)


def test_logprobs_of_beams_are_those_of_their_parents_scores():
    made = step([[0.0, 1.0, 2.0], [5.0, 0.0, -1.0]], [1, 1], beams=beams([[[4, 1], [4, 1]]], parents=[1, 0]))
    expected = torch.log_softmax(made.scores, dim=-1)[torch.tensor([1, 0]), made.tokens]
    assert torch.equal(made.logprobs, expected)


def beams(ids, finished=(), settled=False, returned=1, parents=(0, 1), idle=None):
    """Beams of one prompt."""
    ids = torch.tensor(ids)
    width = ids.shape[1]
    longest = max([ids.shape[2], *map(len, finished)])
    kept = torch.zeros(1, width, longest, dtype=torch.long)
    for i, row in enumerate(finished):
        kept[0, i, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([[*map(len, finished), *[0] * (width - len(finished))]])
    return Beams(
        parents=torch.tensor(parents),
        tokens=ids[0, :, -1],
        scores=torch.zeros(width),
        ids=ids,
        finished_ids=kept,
        finished_scores=torch.zeros(1, width),
        finished_lengths=lengths,
        settled=torch.tensor([settled]),
        returned=returned,
        idle=None if idle is None else torch.tensor(idle),
    )


def test_agreed_is_what_running_beams_have_in_common():
    assert beams([[[4, 7, 8], [4, 7, 9]]]).agreed == ((4, 7),)


def test_agreed_takes_the_hypotheses_kept_into_account():
    assert beams([[[4, 7, 8], [4, 7, 9]]], finished=[[4, 5]]).agreed == ((4,),)


def test_a_settled_prompt_agrees_on_what_will_be_returned():
    made = beams([[[4, 7, 8], [4, 7, 9]]], finished=[[4, 5, 2], [4, 6, 2]], settled=True, returned=1)
    assert made.agreed == ((4, 5, 2),)


def test_idle_rows_have_no_say():
    assert beams([[[4, 7, 8], [0, 0, 0]]], idle=[False, True]).agreed == ((4, 7, 8),)


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=5))
def test_the_common_prefix_is_the_longest_there_is(rows):
    common = records._common(rows)
    assert all(tuple(row[: len(common)]) == common for row in rows)
    longer = {tuple(row[: len(common) + 1]) for row in rows}
    assert len(longer) > 1 or any(len(row) == len(common) for row in rows)


@pytest.mark.parametrize("reason", FinishReason)
def test_a_result_is_complete_if_its_rows_ended_by_themselves(reason):
    result = Result(torch.tensor([[1, 2]]), 1, (Finish(reason),), steps=1, forwards=1)
    early = reason in (FinishReason.STOPPED, FinishReason.INTERRUPTED, FinishReason.ERROR)
    assert result.complete is not early
    assert result.tokens.tolist() == [[2]]
