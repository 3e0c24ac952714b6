"""Text comes as soon as it is certain, is never taken back, and keeps its ids and log-probabilities with it."""

from __future__ import annotations

import io
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenizers_made as made
from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, generate_stream
from unspool.detokenize import detokenizer_for
from unspool.errors import ArgumentError
from unspool.records import Finish, Opening, Step
from unspool.row_text import RowText, StopStrings
from unspool.sinks import TextSink
from unspool.text import TextReader, TextStream
from unspool.views import View

KINDS = {"byte level": made.byte_level, "byte fallback": made.byte_fallback, "word piece": made.word_piece}
TEXTS = st.text(alphabet="the caostp,.\n歪你😀é\u0301\ufffd", max_size=40)


def decoded(tokenizer, ids, skip=True):
    return tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def pieces(tokenizer, ids, skip=True):
    detokenizer = detokenizer_for(tokenizer, skip_special_tokens=skip)()
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


# --------------------------------------------------------------------------------------------- detokenising


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_pieces_joined_are_the_decoded_text(kind, text):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)) == decoded(tokenizer, ids)


@given(st.lists(st.integers(0, 340), max_size=30), st.booleans())
@settings(max_examples=150, deadline=None)
def test_pieces_of_arbitrary_byte_level_ids_are_the_decoded_text(ids, skip):
    tokenizer = made.byte_level()
    inside = [token for token in ids if token < len(tokenizer)]
    assert "".join(pieces(tokenizer, ids, skip)) == decoded(tokenizer, inside, skip)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
@pytest.mark.parametrize("character", ["é", "你", "😀", "\ufffd"])
def test_a_character_comes_with_its_last_byte_and_no_sooner(kind, character):
    tokenizer = KINDS[kind]()
    if kind == "byte level":
        by_byte = {byte: made_id for made_id, byte in _single_bytes(tokenizer).items()}
    else:
        by_byte = {byte: tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)}
    ids = [by_byte[byte] for byte in character.encode()]
    *early, last, rest = pieces(tokenizer, ids)
    assert (early, last, rest) == ([""] * (len(ids) - 1), character, "")


def _single_bytes(tokenizer):
    from unspool.detokenize import _byte_of_character

    table = _byte_of_character()
    vocab = tokenizer.get_vocab().items()
    return {i: table[token] for token, i in vocab if len(token) == 1 and token in table}


def test_a_finished_character_stays_when_the_first_byte_of_the_next_arrives():
    tokenizer = made.byte_fallback()
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "你好".encode()]
    assert pieces(tokenizer, ids) == ["", "", "你", "", "", "好", ""]


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_a_true_replacement_character_passes_at_once_and_does_not_stall(kind):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode("the \ufffd\ufffd the", add_special_tokens=False)
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == decoded(tokenizer, ids)
    assert "\ufffd\ufffd" in "".join(shown[: len(ids) - 1])


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_output_cut_inside_a_character_ends_as_the_tokenizer_shows_it(kind):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode("the 😀", add_special_tokens=False)[:-1]
    shown = "".join(pieces(tokenizer, ids))
    assert shown.endswith("\ufffd")
    assert shown == decoded(tokenizer, ids)


def test_a_finished_character_is_not_taken_back_when_the_next_is_cut():
    tokenizer = made.byte_fallback()
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "你好".encode()[:-1]]
    assert "".join(pieces(tokenizer, ids)) == "你\ufffd\ufffd"


@pytest.mark.parametrize("decoder", [made.nested_byte_level, made.mixed_byte_level])
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_byte_level_inside_other_decoders_shows_whole_characters(decoder, text):
    tokenizer = decoder()
    ids = tokenizer.encode(text).ids
    shown = pieces(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(shown)


def test_a_decoder_that_only_joins_is_not_taken_for_byte_level():
    tokenizer = made.joined()
    ids = tokenizer.encode("Ġé").ids
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == "Ġé"


@pytest.mark.parametrize("kind", [*KINDS, "without backend"])
def test_ids_that_the_tokenizer_does_not_know_have_no_text(kind):
    tokenizer = KINDS.get(kind, made.Slow)()
    known = [97, 98] if kind == "without backend" else tokenizer.encode("the", add_special_tokens=False)
    assert "".join(pieces(tokenizer, [-1, *known, 100_000, 2**40])) == decoded(tokenizer, known)


def test_the_window_of_a_tokenizer_without_backend_does_not_grow():
    tokenizer = made.Slow()
    detokenizer = detokenizer_for(tokenizer)()
    text = "x" * 4000 + "歪"
    shown = "".join(detokenizer.push(byte) for byte in text.encode()) + detokenizer.flush()
    assert shown == text
    assert tokenizer.widest <= 24


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_by_itself(kind):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode("the cat stop the", add_special_tokens=False)
    one = detokenizer_for(tokenizer)()
    head = "".join(one.push(token) for token in ids[:2])
    other = one.copy()
    one.push(ids[0])
    assert head + "".join(other.push(token) for token in ids[2:]) + other.flush() == decoded(tokenizer, ids)


def test_what_is_no_tokenizer_is_refused_by_name():
    with pytest.raises(ArgumentError, match="tokenizer is a int"):
        detokenizer_for(3)


def test_a_processor_lends_its_tokenizer():
    processor = types.SimpleNamespace(tokenizer=made.byte_level())
    ids = made.byte_level().encode("the cat")
    assert "".join(pieces(processor, ids)) == "the cat"


# --------------------------------------------------------------------------------------------- stop strings


def shown_by(tokens, stops):
    """What a row shows of some tokens, each given as its text."""

    class Texts:
        def push(self, token):
            return tokens[token]

        def flush(self):
            return ""

    row = RowText((0, 0, 0), Texts(), StopStrings(stops))
    chunks = [row.push(i, -float(i)) for i in range(len(tokens))]
    chunks.append(row.end(Finish(FinishReason.MAX_LENGTH)))
    return [chunk for chunk in chunks if chunk is not None]


@given(
    st.lists(st.text(alphabet="ab<", max_size=3), max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_a_stop_string_never_leaks_and_all_before_it_is_shown(tokens, stops):
    # A row ends with the first token that completes a stop string; what comes later can't change that.
    so_far = ["".join(tokens[: count + 1]) for count in range(len(tokens))]
    whole = next((text for text in so_far if any(stop in text for stop in stops)), "".join(tokens))
    cuts = [whole.find(stop) for stop in stops if stop in whole]
    expected = whole[: min(cuts)] if cuts else whole
    chunks = shown_by(tokens, stops)
    assert "".join(chunk.text for chunk in chunks) == expected
    assert (chunks[-1].finish.reason is FinishReason.STOP_STRING) == bool(cuts)
    assert all(chunk.finish is None for chunk in chunks[:-1])


@given(
    st.lists(st.text(alphabet="ab<", max_size=3), max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=4), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_text_ids_and_logprobs_of_a_chunk_belong_together(tokens, stops):
    position = 0
    for chunk in shown_by(tokens, stops):
        assert chunk.ids == tuple(range(position, position + len(chunk.ids)))
        assert chunk.logprobs == tuple(-float(i) for i in chunk.ids)
        whole = "".join(tokens[i] for i in chunk.ids)
        assert whole.startswith(chunk.text)
        if chunk.finish is None or chunk.finish.reason is not FinishReason.STOP_STRING:
            assert whole == chunk.text
        position += len(chunk.ids)


def test_text_that_may_become_a_stop_string_is_held_and_released_when_it_cannot():
    assert [chunk.text for chunk in shown_by(["a", "S", "T", "x"], ["STOP"])] == ["a", "STx", ""]


# ---------------------------------------------------------------------------------------------- whole streams


def test_chunks_of_a_batch_name_their_row_prompt_and_sample():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    stream = generate_stream(
        model, **prompt(2), max_new_tokens=5, num_return_sequences=2, do_sample=True, seed=1, eos_token_id=None
    )
    chunks = list(stream.text(tokenizer))
    assert {(chunk.row, chunk.prompt, chunk.sample) for chunk in chunks} == {(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)}
    for row, ids in enumerate(stream.result.tokens.tolist()):
        mine = [chunk for chunk in chunks if chunk.row == row]
        assert [token for chunk in mine for token in chunk.ids] == ids
        assert "".join(chunk.text for chunk in mine) == decoded(tokenizer, ids)
        assert [chunk.finish is not None for chunk in mine] == [False] * (len(mine) - 1) + [True]


def test_logprobs_of_chunks_are_those_of_the_steps():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    steps = [step.logprobs.item() for step in generate_stream(model, **prompt(), max_new_tokens=6)]
    chunks = list(generate_stream(model, **prompt(), max_new_tokens=6).text(tokenizer))
    assert [logprob for chunk in chunks for logprob in chunk.logprobs] == pytest.approx(steps)


def test_a_stop_string_ends_the_row_and_is_not_shown():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    plain = decoded(tokenizer, next(iter(generate_stream(model, **prompt(), max_new_tokens=6).to().tokens.tolist())))
    word = plain.split()[3]
    stream = generate_stream(model, **prompt(), max_new_tokens=6, tokenizer=tokenizer, stop_strings=[word])
    shown = "".join(chunk.text for chunk in stream.text())
    assert shown == plain[: plain.index(word)]
    assert stream.result.finishes[0] == Finish(FinishReason.STOP_STRING, word)


def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(ArgumentError, match="tokenizer"):
        generate_stream(tiny_model(), **prompt()).text()


def test_what_was_held_comes_before_an_error():
    error = RuntimeError("half way")
    steps = iter([_step(5), _step(6)])

    def next_event():
        event = next(steps, None)
        if event is None:
            raise error
        return event

    opening = _opening(stop_strings=["w6 w7"])
    run = types.SimpleNamespace(opening=lambda: opening, result=None)
    view = View(types.SimpleNamespace(next_event=next_event), TextReader(run, tiny_tokenizer()))
    chunks = []
    with pytest.raises(RuntimeError) as caught:
        chunks.extend(view)
    assert caught.value is error
    assert "".join(chunk.text for chunk in chunks) == "w5 w6"
    assert chunks[-1].finish == Finish(FinishReason.ERROR, error)


def test_tokens_of_a_row_that_has_ended_have_no_text():
    text = TextStream(_opening(), tiny_tokenizer())
    first = text.take(_step(5, ended={0: Finish(FinishReason.EOS, 5)}))
    assert [(chunk.text, chunk.finish and chunk.finish.reason) for chunk in first] == [
        ("w5", None),
        ("", FinishReason.EOS),
    ]
    assert text.take(_step(7, live=False)) == []


def _opening(**settings):
    config = types.SimpleNamespace(stop_strings=None, num_beams=1, num_return_sequences=1)
    vars(config).update(settings)
    return Opening(prompt_ids=torch.tensor([[4]]), rows_per_prompt=1, config=config)


def _step(token, live=True, ended=None):
    logits = torch.zeros(1, 160)
    return Step(0, 0, torch.tensor([token]), torch.tensor([live]), logits, logits, None, range(1), ended or {})


# -------------------------------------------------------------------------------------------------- the sink


def written(rows=1, **options):
    file = io.StringIO()
    stream = generate_stream(
        tiny_model(), **prompt(rows), max_new_tokens=4, do_sample=False, eos_token_id=None, tokenizer=tiny_tokenizer()
    )
    result = stream.to(TextSink(file, **options))
    return file.getvalue(), [decoded(tiny_tokenizer(), ids) for ids in result.tokens.tolist()]


def test_the_sink_writes_the_text_and_its_end_once():
    shown, texts = written(end="|")
    assert shown == texts[0] + "|"


def test_the_sink_writes_a_batch_by_labelled_lines():
    shown, texts = written(rows=2)
    assert sorted(shown.splitlines()) == [f"[prompt {i}, sample 0] {text}" for i, text in enumerate(texts)]


def test_the_sink_echoes_the_prompt_and_goes_on_from_it():
    shown, _ = written(skip_prompt=False)
    ids = generate_stream(tiny_model(), **prompt(), max_new_tokens=4, eos_token_id=None).to().sequences
    assert shown.endswith("\n")
    assert decoded(tiny_tokenizer(), ids[0].tolist()).startswith(shown[:-1])
    assert len(shown[:-1].split()) > prompt()["input_ids"].shape[1]


@pytest.mark.parametrize("settings", [{"do_sample": True, "seed": 1}, {"num_beams": 2}], ids=["samples", "beams"])
def test_the_sink_echoes_each_prompt_once_by_its_number(settings):
    file, tokenizer = io.StringIO(), tiny_tokenizer()
    stream = generate_stream(
        tiny_model(), **prompt(2), max_new_tokens=3, num_return_sequences=2, tokenizer=tokenizer, **settings
    )
    stream.to(TextSink(file, skip_prompt=False))
    echoed = [decoded(tokenizer, ids) for ids in prompt(2)["input_ids"].tolist()]
    lines = file.getvalue().splitlines()
    assert lines[:2] == [f"[prompt {i}] {text}" for i, text in enumerate(echoed)]
    assert sorted(line.split("]")[0] for line in lines[2:]) == sorted(
        f"[prompt {i}, sample {j}" for i in range(2) for j in range(2)
    )


def test_the_sink_needs_a_tokenizer():
    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=2)
    with pytest.raises(ArgumentError, match="TextSink needs"):
        stream.to(TextSink(io.StringIO()))


def test_the_sink_writes_what_was_held_when_the_run_is_left():
    file = io.StringIO()
    with generate_stream(
        tiny_model(), **prompt(), max_new_tokens=9, tokenizer=tiny_tokenizer(), sinks=[TextSink(file, end="|")]
    ) as stream:
        next(stream)
    assert file.getvalue() == decoded(tiny_tokenizer(), stream.result.tokens[0].tolist()) + "|"


def test_beams_show_what_all_agree_on_and_end_with_the_returned_text():
    tokenizer = tiny_tokenizer()
    stream = generate_stream(tiny_model(), **prompt(2), max_new_tokens=6, num_beams=3, num_return_sequences=2)
    shown: dict[int, str] = {}
    for chunk in stream.text(tokenizer):
        shown[chunk.row] = shown.get(chunk.row, "") + chunk.text
    rows = stream.result.tokens.tolist()
    length = (stream.result.beam_indices >= 0).sum(dim=1).tolist()
    assert shown == {row: decoded(tokenizer, ids[: length[row]]) for row, ids in enumerate(rows)}
