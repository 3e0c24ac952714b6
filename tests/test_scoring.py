"""Scoring reads a text as a prompt is read, and says of each token what a plain forward says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate_stream
from unspool.choosing import choose
from unspool.errors import ArgumentError
from unspool.perplexity import perplexity
from unspool.scoring import score, score_stream

ROWS = [[5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [30, 31, 32, 33, 34]]
DECODER_ONLY = ["llama", "gpt2", "bloom", "gemma3_text", "mixtral", "mamba", "recurrent_gemma"]


def plainly(model, row, given=1):
    """Log-probabilities of the ids of a row after the first `given`, from one forward over it alone."""
    ids = torch.tensor([row])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].float()
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[0, 1:, None])[given - 1 :, 0]


def of_row(scored, row):
    return scored.logprobs[row][scored.mask[row]]


@pytest.mark.parametrize("chunk_size", [None, 2, 3])
@pytest.mark.parametrize("name", DECODER_ONLY)
def test_a_batch_is_scored_as_each_text_is_by_a_plain_forward(name, chunk_size):
    model = tiny_model(name)
    scored = score(model, ROWS, chunk_size=chunk_size)
    assert scored.counts.tolist() == [6, 2, 4]
    for row, ids in enumerate(ROWS):
        assert scored.ids[row, : len(ids)].tolist() == ids
        torch.testing.assert_close(of_row(scored, row), plainly(model, ids), atol=1e-4, rtol=1e-4)


@given(st.lists(st.lists(st.integers(4, 159), min_size=2, max_size=12), min_size=1, max_size=4), st.integers(1, 13))
@settings(max_examples=40, deadline=None)
def test_chunks_change_nothing(rows, chunk_size):
    model = tiny_model("gemma3_text")
    whole, parts = score(model, rows, chunk_size=None), score(model, rows, chunk_size=chunk_size)
    torch.testing.assert_close(whole.logprobs, parts.logprobs, atol=1e-4, rtol=1e-4)
    assert torch.equal(whole.mask, parts.mask)


def test_a_continuation_is_scored_without_its_prompt():
    model = tiny_model()
    scored = score(model, [[5, 6, 7], [20, 21, 22, 23]], [[8, 9], [24]])
    assert scored.counts.tolist() == [2, 1]
    torch.testing.assert_close(of_row(scored, 0), plainly(model, [5, 6, 7, 8, 9], given=3), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(of_row(scored, 1), plainly(model, [20, 21, 22, 23, 24], given=4), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scored.totals[0], of_row(scored, 0).sum())
    torch.testing.assert_close(scored.perplexities, torch.exp(-scored.totals / torch.tensor([2, 1])))


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_encoder_decoder_scores_what_its_decoder_says(name, chunk_size):
    model, start = tiny_model(name), 3
    said = [[8, 9, 10], [24]]
    scored = score(model, [[5, 6, 7], [20, 21, 22, 23]], said, chunk_size=chunk_size)
    for row, (read, ids) in enumerate(zip([[5, 6, 7], [20, 21, 22, 23]], said, strict=True)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([[start, *ids]])).logits
        expected = torch.log_softmax(logits[0, :-1], -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(of_row(scored, row), expected, atol=1e-4, rtol=1e-4)


def test_scores_of_a_generated_text_are_those_of_its_steps():
    model, given = tiny_model(), prompt()
    steps = list(generate_stream(model, **given, max_new_tokens=6, do_sample=True, seed=1, top_k=0))
    said = torch.stack([step.tokens for step in steps], dim=1)
    scored = score(model, given["input_ids"], said)
    expected = torch.stack([step.logprobs for step in steps], dim=1)
    torch.testing.assert_close(of_row(scored, 0), expected[0], atol=1e-4, rtol=1e-4)


def test_entropy_ranks_and_the_likeliest_come_when_asked_for():
    model = tiny_model()
    plain, full = score(model, ROWS), score(model, ROWS, entropy=True, ranks=True, top_logprobs=5)
    assert plain.entropy is plain.ranks is plain.top_ids is plain.top_logprobs is None
    with torch.no_grad():
        logits = model(torch.tensor(ROWS[:1])).logits[0, :-1]
    distribution = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(full.entropy[0, 1:], distribution.entropy(), atol=1e-4, rtol=1e-4)
    order = logits.argsort(dim=-1, descending=True)
    for at, token in enumerate(ROWS[0][1:]):
        assert order[at, full.ranks[0, at + 1] - 1] == token
        assert full.top_ids[0, at + 1].tolist() == order[at, :5].tolist()
    torch.testing.assert_close(full.top_logprobs[0, 1:], distribution.logits.topk(5).values, atol=1e-4, rtol=1e-4)


def test_padding_of_the_callers_is_left_out():
    model = tiny_model()
    ids = torch.tensor([[0, 0, 5, 6, 7], [20, 21, 22, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    scored = score(model, ids, attention_mask=mask)
    assert scored.counts.tolist() == [2, 2]
    torch.testing.assert_close(of_row(scored, 1), plainly(model, [20, 21, 22]), atol=1e-4, rtol=1e-4)


def test_strings_are_scored_with_the_tokenizer():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    by_text = score(model, "w5 w6", " w7 w8", tokenizer=tokenizer)
    by_ids = score(model, tokenizer("w5 w6")["input_ids"], [7, 8])
    assert torch.equal(by_text.logprobs, by_ids.logprobs)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_stream_has_a_step_for_each_token_that_is_scored(chunk_size):
    model = tiny_model()
    scored = score(model, ROWS)
    steps = list(score_stream(model, ROWS, chunk_size=chunk_size, output_hidden_states=True))
    assert [step.index for step in steps] == list(range(6))
    for at, step in enumerate(steps):
        live = scored.mask[:, at + 1]
        assert torch.equal(step.live, live)
        torch.testing.assert_close(step.logprobs[live], scored.logprobs[:, at + 1][live], atol=1e-4, rtol=1e-4)
        assert step.outputs.hidden_states[-1].shape == (3, 1, 32)


def test_a_stream_reads_no_further_than_it_is_asked_to():
    model, widths = tiny_model(), []
    handle = model.register_forward_hook(lambda *args: widths.append(args[2].logits.shape[1]))
    steps = score_stream(model, [list(range(5, 25))], chunk_size=4)
    assert widths == []
    next(steps)
    assert widths == [4]
    steps.close()
    handle.remove()
    assert widths == [4]


def test_the_perplexity_of_a_text_that_fits_the_window_is_that_of_its_tokens():
    model = tiny_model()
    torch.testing.assert_close(
        perplexity(model, ROWS[:1], window=20), float(score(model, ROWS[:1]).perplexities), rtol=1e-4, atol=0
    )


def test_perplexity_with_a_stride_scores_every_token_once_with_the_context_it_may_see():
    model, ids = tiny_model(), list(range(5, 40))
    total, count = plainly(model, ids[:8]).sum(), 7
    for end in range(11, 40, 3):
        end = min(end, len(ids))
        last = 8 + 3 * ((end - 8 - 1) // 3)
        window = ids[max(0, end - 8) : end]
        new = end - last
        total, count = total + plainly(model, window, given=len(window) - new).sum(), count + new
        if end == len(ids):
            break
    assert count == len(ids) - 1
    assert perplexity(model, [ids], window=8, stride=3) == pytest.approx(float(torch.exp(-total / count)), rel=1e-4)


BAD = {
    "no rows": (([],), {}, "There is no text"),
    "strings without tokenizer": (("w5",), {}, "tokenizer="),
    "floats": ((torch.rand(1, 3),), {}, "integers"),
    "other count": (([[5, 6]], [[7], [8]]), {}, "inputs has 1 rows, but continuation 2"),
    "an empty row": (([[5, 6], []],), {}, "no tokens"),
    "a mask of another shape": ((torch.tensor([[5, 6]]),), {"attention_mask": torch.ones(1, 3)}, "attention_mask"),
    "chunks of nothing": (([[5, 6]],), {"chunk_size": 0}, "chunk_size=0"),
    "fewer than none": (([[5, 6]],), {"top_logprobs": -1}, "top_logprobs=-1"),
    "not in the vocabulary": (([[5, 999]],), {}, "999"),
    "an unknown keyword": (([[5, 6]],), {"attention_maks": None, "colour": 3}, "colour"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_what_cannot_be_scored_is_refused_by_name(wrong):
    args, kwargs, said = BAD[wrong]
    with pytest.raises(ArgumentError, match=said):
        score(tiny_model(), *args, **kwargs)


def test_an_encoder_decoder_needs_a_continuation():
    with pytest.raises(ArgumentError, match="continuation"):
        score(tiny_model("t5"), [[5, 6]])


@pytest.mark.parametrize(("window", "stride"), [(1, None), (8, 0), (8, 8)])
def test_a_window_that_does_not_move_is_refused(window, stride):
    with pytest.raises(ArgumentError, match="window"):
        perplexity(tiny_model(), ROWS[:1], window=window, stride=stride)


# ------------------------------------------------------------------------------------------------- choosing


OPTIONS = [[8, 9, 10], [24], [31, 32]]


@pytest.mark.parametrize("name", [*DECODER_ONLY, "t5", "bart"])
def test_options_are_compared_by_what_each_scores_alone(name):
    model, given = tiny_model(name), [5, 6, 7, 8, 9]
    choice = choose(model, given, OPTIONS)
    alone = [float(score(model, [given], [option]).means) for option in OPTIONS]
    assert choice.scores == pytest.approx(alone, rel=1e-3, abs=1e-3)
    assert choice.best == max(range(3), key=alone.__getitem__)
    assert sum(choice.probabilities) == pytest.approx(1)
    by_sum = choose(model, given, OPTIONS, by="sum").scores
    assert by_sum == pytest.approx([mean * len(option) for mean, option in zip(alone, OPTIONS, strict=True)], rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_the_prompt_of_a_choice_is_read_once(name):
    model, shapes = tiny_model(name), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    choose(model, list(range(5, 25)), OPTIONS)
    assert [tuple(shape) for shape in shapes] == [(1, 19), (3, 4)]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_encoder_of_a_choice_runs_once(name):
    model, rows = tiny_model(name), []
    model.get_encoder().register_forward_hook(lambda module, args, output: rows.append(output[0].shape[0]))
    choose(model, list(range(5, 25)), OPTIONS)
    assert rows == [1]


def test_a_function_of_the_callers_compares():
    choice = choose(tiny_model(), [5, 6], OPTIONS, by=lambda scored: -scored.counts)
    assert choice.ranking == (1, 2, 0)


def test_what_cannot_be_chosen_from_is_refused_by_name():
    with pytest.raises(ArgumentError, match="one prompt"):
        choose(tiny_model(), [[5, 6], [7, 8]], OPTIONS)
    with pytest.raises(ArgumentError, match="by='best'"):
        choose(tiny_model(), [5, 6], OPTIONS, by="best")
    with pytest.raises(ArgumentError, match="no text"):
        choose(tiny_model(), [5, 6], [])
