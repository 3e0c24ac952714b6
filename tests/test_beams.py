"""Beam search: equal to transformers, a step at a time, with what all beams agree on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny import prompt, tiny_model
from unspool import FinishReason, generate, generate_stream
from unspool.sinks import CollectSink

SETTINGS = {
    "plain": {},
    "longer": {"length_penalty": 2.0},
    "shorter": {"length_penalty": -1.0},
    "first": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 1.5},
    "several": {"num_return_sequences": 3},
    "processed": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "renormalize_logits": True},
    "drawn": {"do_sample": True, "num_return_sequences": 2, "temperature": 1.3},
    "no cache": {"use_cache": False},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "t5", "bart"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_equal_to_transformers_with_every_tensor(name, kind):
    model = tiny_model(name)
    asked = {
        **prompt(3, ragged=True),
        "num_beams": 4,
        "max_new_tokens": 8,
        "eos_token_id": [9, 41, 67],
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        **SETTINGS[kind],
    }
    torch.manual_seed(0)
    theirs = model.generate(**asked)
    torch.manual_seed(0)
    ours = generate(model, **asked)
    assert type(ours) is type(theirs)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert torch.equal(ours.beam_indices, theirs.beam_indices)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-4, rtol=1e-4)
    for mine, other in zip((*ours.scores, *ours.logits), (*theirs.scores, *theirs.logits), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_transition_scores_come_to_the_beam_scores():
    model = tiny_model()
    asked = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.7, "max_new_tokens": 6}
    out = generate(model, **prompt(2), return_dict_in_generate=True, output_scores=True, **asked)
    steps = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    length = (out.beam_indices >= 0).sum(dim=1)
    torch.testing.assert_close(steps.sum(dim=1) / length**0.7, out.sequences_scores, atol=1e-4, rtol=1e-4)


def test_parents_and_tokens_replay_to_the_running_beams():
    rows = prompt(2)["input_ids"].repeat_interleave(3, dim=0)
    for step in generate_stream(tiny_model(), **prompt(2), num_beams=3, max_new_tokens=6):
        rows = torch.cat([rows[step.beams.parents], step.beams.tokens[:, None]], dim=-1)
        assert torch.equal(rows, step.beams.ids.flatten(0, 1))
        assert torch.equal(step.tokens, step.beams.tokens)


def test_the_logprobs_of_a_step_add_up_to_the_scores_of_its_beams():
    total = torch.zeros(3)
    for step in generate_stream(tiny_model(), **prompt(), num_beams=3, max_new_tokens=5, eos_token_id=None):
        total = total[step.beams.parents] + step.logprobs
        torch.testing.assert_close(total, step.beams.scores, atol=1e-4, rtol=1e-4)


def test_each_returned_sequence_ends_once_with_its_reason():
    stream = generate_stream(
        tiny_model(), **prompt(2), num_beams=3, num_return_sequences=2, max_new_tokens=8, eos_token_id=[9, 41, 67]
    )
    ended = [step.ended for step in stream]
    assert all(not some for some in ended[:-1])
    assert sorted(ended[-1]) == [0, 1, 2, 3]
    for row, finish in ended[-1].items():
        ids = stream.result.sequences[row].tolist()
        if finish.reason is FinishReason.EOS:
            assert finish.detail in ids
        else:
            assert finish.reason is FinishReason.MAX_LENGTH
            assert len(ids) == 15


def test_a_search_left_early_has_the_best_so_far():
    stream = generate_stream(tiny_model(), **prompt(2), num_beams=3, max_new_tokens=8, eos_token_id=None)
    for _ in range(3):
        step = next(stream)
    stream.close()
    assert torch.equal(stream.result.sequences, step.beams.ids[:, 0])
    assert {finish.reason for finish in stream.result.finishes} == {FinishReason.STOPPED}


def check_agreed(seed, beams, prompts, returned, early, penalty, eos):
    model = tiny_model(("llama", "t5")[seed % 2], seed=seed % 4)
    asked = {"num_beams": beams, "num_return_sequences": returned, "early_stopping": early, "length_penalty": penalty}
    collect = CollectSink()
    stream = generate_stream(
        model,
        **prompt(prompts, seed=seed),
        **asked,
        max_new_tokens=7,
        eos_token_id=eos,
        pad_token_id=1,
        sinks=[collect],
    )
    seen = [step.beams.agreed for step in stream]
    rows = stream.result.sequences.tolist()
    lengths = ((stream.result.beam_indices >= 0).sum(dim=1) + stream.result.prompt_length).tolist()
    for at, now in enumerate(seen):
        for number, agreed in enumerate(now):
            if at:
                before = seen[at - 1][number]
                assert agreed[: len(before)] == before
            for row in range(number * returned, (number + 1) * returned):
                assert tuple(rows[row][: lengths[row]])[: len(agreed)] == agreed


agreement = given(
    seed=st.integers(0, 999),
    beams=st.integers(2, 8),
    prompts=st.sampled_from([1, 3]),
    returned=st.integers(1, 8),
    early=st.sampled_from([True, False, "never"]),
    penalty=st.floats(-2.0, 2.0),
    eos=st.lists(st.integers(4, 159), min_size=1, max_size=30, unique=True),
)


@agreement
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_agreed_only_grows_and_begins_every_returned_sequence(seed, beams, prompts, returned, early, penalty, eos):
    check_agreed(seed, beams, prompts, min(returned, beams), early, penalty, eos)


def check_replay(seed, beams, prompts, returned, early, penalty, eos):
    """Each returned sequence, walked backwards along its parents, and its score from those of its tokens."""
    asked = {"num_beams": beams, "num_return_sequences": returned, "early_stopping": early, "length_penalty": penalty}
    model = tiny_model(("llama", "t5")[seed % 2], seed=seed % 4)
    stream = generate_stream(
        model, **prompt(prompts, seed=seed), **asked, max_new_tokens=7, eos_token_id=eos, pad_token_id=1
    )
    steps = list(stream)
    result = stream.result
    for ids, choices, score in zip(result.tokens, result.beam_indices.long(), result.sequences_scores, strict=True):
        length = int((choices >= 0).sum())
        total = sum(steps[i].scores[choices[i], ids[i]].item() for i in range(length))
        assert total / length**penalty == pytest.approx(score.item(), rel=1e-3, abs=1e-3)
        for i in range(1, length):
            assert steps[i - 1].beams.tokens[choices[i]] == ids[i - 1]
            assert steps[i - 1].beams.parents[choices[i]] == choices[i - 1]


@agreement
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_parents_and_tokens_rebuild_each_sequence_and_scores_its_score(
    seed, beams, prompts, returned, early, penalty, eos
):
    check_replay(seed, beams, prompts, min(returned, beams), early, penalty, eos)


@pytest.mark.slow
@pytest.mark.timeout(900)
@agreement
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_replay_holds_over_many_searches(seed, beams, prompts, returned, early, penalty, eos):
    check_replay(seed, beams, prompts, min(returned, beams), early, penalty, eos)


@pytest.mark.slow
@pytest.mark.timeout(900)
@agreement
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_agreed_holds_over_many_searches(seed, beams, prompts, returned, early, penalty, eos):
    check_agreed(seed, beams, prompts, min(returned, beams), early, penalty, eos)


def test_hypotheses_that_tie_are_not_agreed_on_while_the_search_goes_on():
    step = next(generate_stream(tiny_model(), **prompt(2), num_beams=2, max_new_tokens=3))
    tie = {
        "finished_ids": torch.tensor([[[5, 6, 7], [5, 8, 9]]] * 2),
        "finished_scores": torch.tensor([[-1.0, -1.0], [-1.0, -2.0]]),
        "finished_lengths": torch.tensor([[3, 3]] * 2),
    }
    going = replace(step.beams, **tie, settled=torch.tensor([True, False]))
    assert going.agreed[0] == (5,)
    assert replace(going, finished_scores=torch.tensor([[-1.0, -2.0]] * 2)).agreed[0] == (5, 6, 7)
    assert replace(going, settled=torch.tensor([True, True])).agreed[0] == (5, 6, 7)
