"""Records on the wire: strict JSON, one object a line, and server-sent events that come back as they were sent."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from httpx_sse._decoders import SSEDecoder, SSELineDecoder
from hypothesis import given
from hypothesis import strategies as st

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, Step, TextChunk, generate_stream
from unspool.errors import ArgumentError
from unspool.records import Finish
from unspool.sinks import JsonlSink, SseSink
from unspool.sinks.sse import encode_comment, encode_event
from unspool.wire import STEP_FIELDS, Wire, dumps

SINKS = [JsonlSink, SseSink]
TEXT = st.text(st.characters(codec=None, categories=None))


def strictly(line):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


def events_of(text, size=7):
    """What an independent reader makes of server-sent events that arrive in pieces."""
    lines, decoder, found = SSELineDecoder(), SSEDecoder(), []
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for line in [line for piece in pieces for line in lines.decode(piece)] + lines.flush():
        event = decoder.decode(line)
        if event is not None:
            found.append(event)
    return found


def records_of(kind, stream, **settings):
    file = io.StringIO()
    try:
        stream.to(kind(file, **settings))
    finally:
        written = file.getvalue()
        if kind is JsonlSink:
            assert written.endswith("\n")
            records = [strictly(line) for line in written[:-1].split("\n")]
        else:
            events = events_of(written)
            assert [event.id for event in events] == [str(number) for number in range(len(events))]
            records = [strictly(event.data) for event in events]
            assert [event.event for event in events] == [record["type"] for record in records]
        records_of.latest = records
    return records


def stream_of(rows=2, new=4, **settings):
    return generate_stream(tiny_model(), **prompt(rows), max_new_tokens=new, eos_token_id=None, **settings)


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "seed": 1}, {"num_beams": 2}], ids=str)
def test_each_step_is_a_record_of_what_it_holds(kind, settings):
    steps = list(stream_of(**settings))
    records = records_of(kind, stream_of(**settings))
    assert [r["type"] for r in records if r["type"] != "prefill"] == ["start", *["step"] * 4, "end"]
    for step, record in zip(steps, [r for r in records if r["type"] == "step"], strict=True):
        assert set(record) == {"type", *STEP_FIELDS}
        assert record["tokens"] == step.tokens.tolist()
        assert record["logprobs"] == step.logprobs.tolist()
        assert record["ended"] == {
            str(row): {"reason": finish.reason, "detail": finish.detail} for row, finish in step.ended.items()
        }
        if step.beams is not None:
            assert record["beams"]["agreed"] == [list(ids) for ids in step.beams.agreed]
    assert records[-1]["complete"] is True
    assert len(records[-1]["finishes"]) == 2


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("records", ["steps", "text"])
def test_text_joined_from_records_is_the_text_of_the_stream(kind, settings, records):
    tokenizer = tiny_tokenizer()
    chunks = list(stream_of(**settings).text(tokenizer))
    found = records_of(kind, stream_of(**settings), tokenizer=tokenizer, records=records)
    texts = [r for r in found if r["type"] == "text"] + [c for r in found if r["type"] == "step" for c in r["text"]]
    for row in range(2):
        mine = [chunk for chunk in chunks if chunk.row == row]
        assert "".join(r["text"] for r in texts if r["row"] == row) == "".join(chunk.text for chunk in mine)
        ids = [token for r in texts if r["row"] == row for token in r["ids"]]
        assert ids == [token for chunk in mine for token in chunk.ids]


@pytest.mark.parametrize("kind", SINKS)
def test_an_error_is_the_last_record_after_the_steps_before_it(kind):
    def broken(ids, scores):
        if ids.shape[1] == 9:
            raise OSError("half way")
        return scores

    with pytest.raises(OSError, match="half way"):
        records_of(kind, stream_of(logits_processor=[broken]))
    types = [record["type"] for record in records_of.latest if record["type"] != "prefill"]
    assert types == ["start", "step", "step", "error"]
    assert records_of.latest[-1]["error"] == "OSError"
    assert records_of.latest[-1]["finishes"][0] == {"reason": "error", "detail": "OSError"}


def test_chosen_fields_are_told_and_no_others():
    (step, *_), records = list(stream_of(new=1)), records_of(JsonlSink, stream_of(new=1), fields=["index", "logits"])
    (record,) = [record for record in records if record["type"] == "step"]
    assert record == {"type": "step", "index": 0, "logits": step.logits.tolist()}


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=str)
def test_the_likeliest_tokens_are_told_with_their_text(settings):
    tokenizer = tiny_tokenizer()
    records = records_of(JsonlSink, stream_of(**settings), top_logprobs=3, tokenizer=tokenizer)
    for step, record in zip(stream_of(**settings), [r for r in records if r["type"] == "step"], strict=True):
        parents = range(len(step.tokens)) if step.beams is None else step.beams.parents
        for row, parent in enumerate(parents):
            best = torch.log_softmax(step.scores[parent], -1).topk(3)
            likeliest = record["top_logprobs"][row]
            assert [one["id"] for one in likeliest] == best.indices.tolist()
            assert [one["logprob"] for one in likeliest] == best.values.tolist()
            assert [one["text"] for one in likeliest] == [tokenizer.decode([i]) for i in best.indices]


def test_numbers_that_json_lacks_are_null():
    records = records_of(JsonlSink, stream_of(do_sample=True, top_k=2, seed=0), fields=["scores"])
    (first, *_) = [record["scores"][0] for record in records if record["type"] == "step"]
    assert first.count(None) == len(first) - 2


@given(TEXT)
def test_any_text_comes_back_from_a_line_of_ascii(text):
    line = dumps({"text": text, "number": math.nan})
    assert line.isascii()
    assert "\n" not in line
    assert "\r" not in line
    assert strictly(line) == {"text": text, "number": None}


@given(TEXT, st.integers(1, 9))
def test_any_text_comes_back_from_a_server_sent_event_whatever_its_pieces(text, size):
    (event,) = events_of(encode_comment("before") + encode_event(dumps({"t": text}), event="note", id=4), size)
    assert (event.event, event.id, strictly(event.data)) == ("note", "4", {"t": text})


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"])), min_size=1))
def test_lines_come_back_as_lines(lines):
    text = "\n".join(lines)
    found = events_of(encode_event(text)) if text else []
    assert [event.data for event in found] == ([text] if text else [])


def test_a_chunk_tells_its_finish():
    chunk = TextChunk(1, 0, 1, "a", (5,), (-0.5,), Finish(FinishReason.EOS, 2))
    assert Wire().chunk(chunk) == {
        "type": "text",
        "row": 1,
        "prompt": 0,
        "sample": 1,
        "text": "a",
        "ids": [5],
        "logprobs": [-0.5],
        "finish": {"reason": "eos", "detail": 2},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": ["token"]}, "fields"),
        ({"fields": "tokens"}, "fields"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"records": "words"}, "records"),
    ],
)
@pytest.mark.parametrize("kind", SINKS)
def test_wrong_arguments_are_refused_at_the_call(kind, settings, message):
    with pytest.raises(ArgumentError, match=message):
        kind(io.StringIO(), **settings)


@pytest.mark.parametrize("kind", SINKS)
def test_text_without_a_tokenizer_is_refused(kind):
    with pytest.raises(ArgumentError, match="tokenizer"):
        stream_of().to(kind(io.StringIO(), records="text"))


def test_every_field_of_a_step_can_be_told():
    fields = list(Step.__dataclass_fields__)
    records = records_of(JsonlSink, stream_of(new=2, output_hidden_states=True), fields=fields)
    assert set(records[-2]) == {"type", *fields}
