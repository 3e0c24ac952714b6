"""Whisper: its own walk over windows, step by step, with what is heard anew taken back."""

from __future__ import annotations

import io

import pytest
import torch

from tiny import tiny_tokenizer
from unspool import generate, generate_stream
from unspool.errors import ArgumentError
from unspool.events import Phase, Retract, Segment
from unspool.families.whisper import SpeechStep
from unspool.sinks import CallbackSink, RecordSink, TextSink, replay
from zoo.speech import MARKS, sound, whisper

LONG = dict(language="en", return_timestamps=True, return_segments=True, max_new_tokens=20)
FALLBACK = dict(temperature=(0.0, 0.5, 1.0), logprob_threshold=-2.0, compression_ratio_threshold=1.05)
KINDS = {
    "one window": (sound((0.4,)), dict(language="en", max_new_tokens=20)),
    "two rows": (sound((0.4, 0.4)), {**LONG}),
    "sampling": (sound((0.4, 0.4)), {**LONG, "do_sample": True, "temperature": 0.7}),
    "windows": (sound((1.5,)), LONG),
    "rows of different lengths": (sound((1.5, 0.7)), LONG),
    "fallback": (sound((1.5,)), {**LONG, **FALLBACK, "compression_ratio_threshold": 0.5}),
    "fallback of some rows": (sound((1.5, 0.7, 1.1)), {**LONG, **FALLBACK}),
    "conditioned": (sound((1.1, 0.7)), {**LONG, "condition_on_prev_tokens": True}),
    "beams": (sound((1.5, 0.7)), {**LONG, "num_beams": 2}),
    "prompted": (sound((0.7,)), {**LONG, "prompt_ids": torch.tensor([8, 30, 31])}),
    "language detected": (sound((0.4,)), dict(max_new_tokens=10)),
}
kinds = pytest.mark.parametrize(("inputs", "how"), KINDS.values(), ids=KINDS)


def streamed(inputs, how, **more):
    torch.manual_seed(3)
    return generate_stream(whisper(), **inputs, **how, **more)


def sequences(made):
    return made["sequences"] if isinstance(made, dict) else made


@kinds
def test_the_stream_comes_to_what_generate_returns(inputs, how):
    torch.manual_seed(3)
    expected = whisper().generate(**inputs, **how)
    stream = streamed(inputs, how)
    for _ in stream:
        pass
    assert torch.equal(sequences(stream.result.output), sequences(expected))
    assert torch.equal(stream.result.sequences, sequences(expected))
    torch.manual_seed(3)
    assert torch.equal(sequences(generate(whisper(), **inputs, **how)), sequences(expected))


@pytest.mark.parametrize("name", ["windows", "rows of different lengths", "fallback of some rows", "beams"])
def test_segments_are_told_when_their_window_is_over_and_are_those_of_generate(name):
    inputs, how = KINDS[name]
    torch.manual_seed(3)
    expected = whisper().generate(**inputs, **how)["segments"]
    found = [[] for _ in expected]
    for event in streamed(inputs, how).events():
        if isinstance(event, Segment):
            found[event.row].append((event.start, event.end, event.ids))
    for row, segments in zip(found, expected, strict=True):
        told = [(float(each["start"]), float(each["end"]), tuple(each["tokens"].tolist())) for each in segments]
        assert row == told


def taken(events, rows):
    """What rows took, by steps, with what is void taken back."""
    steps = []
    for event in events:
        if isinstance(event, Retract) and event.rows is None:
            del steps[-event.count :]
        elif isinstance(event, Retract):
            for step in steps[-event.count :]:
                for row in event.rows:
                    step.pop(row, None)
        elif isinstance(event, SpeechStep):
            steps.append({row: int(event.tokens[row]) for row in range(rows) if event.live[row]})
    return [[step[row] for step in steps if row in step] for row in range(rows)]


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("beams", "prompted")])
def test_the_steps_that_stay_hold_what_is_returned(name):
    inputs, how = KINDS[name]
    stream = streamed(inputs, how)
    kept = taken(stream.events(), len(inputs["input_features"]))
    for row, returned in zip(kept, stream.result.sequences.tolist(), strict=True):
        words = [token for token in row if token != 2]
        assert words == [token for token in returned if token != 2]


def test_an_attempt_that_was_rejected_is_void_and_steps_are_numbered_anew():
    inputs, how = KINDS["fallback"]
    events = list(streamed(inputs, how).events())
    void = [i for i, event in enumerate(events) if isinstance(event, Retract) and event.rows is None]
    assert void
    for i in void:
        after = next(event for event in events[i:] if isinstance(event, SpeechStep))
        assert after.index == events[i].index
        assert after.temperature > 0


def test_rows_that_are_heard_anew_leave_the_others_as_they_are():
    inputs, how = KINDS["fallback of some rows"]
    events = list(streamed(inputs, how).events())
    again = [event for event in events if isinstance(event, SpeechStep) and 0 < len(event.heard) < 3]
    assert again
    for step in again:
        assert [bool(live) for live in step.live] == [row in step.heard and bool(step.live[row]) for row in range(3)]


def test_steps_carry_window_time_and_segment():
    inputs, how = KINDS["windows"]
    stream = streamed(inputs, how)
    steps = [step for step in stream if isinstance(step, SpeechStep)]
    assert sorted({step.window for step in steps}) == [0, 1, 2]
    assert steps[0].times[0] == pytest.approx((int(steps[0].tokens[0]) - MARKS - 1) * 0.02)
    assert steps[0].segments == (0,)
    assert max(step.segments[0] for step in steps) > 0


def test_windows_are_phases():
    inputs, how = KINDS["windows"]
    phases = [event for event in streamed(inputs, how).events() if isinstance(event, Phase)]
    assert phases == [Phase("window", 0), Phase("window", 1), Phase("window", 2)]


def spoken(sequences):
    decoded = (tiny_tokenizer().decode([t for t in row if t <= MARKS and t != 2]) for row in sequences.tolist())
    return ["".join(text.split()) for text in decoded]


@pytest.mark.parametrize("name", ["windows", "rows of different lengths", "fallback of some rows", "beams"])
def test_text_is_taken_back_with_the_steps_and_has_no_time_marks(name):
    inputs, how = KINDS[name]
    stream = streamed(inputs, how)
    texts = [""] * len(inputs["input_features"])
    for chunk in stream.text(tiny_tokenizer()):
        texts[chunk.row] = texts[chunk.row][: len(texts[chunk.row]) - chunk.back] + chunk.text
    assert ["".join(text.split()) for text in texts] == spoken(stream.result.sequences)


@pytest.mark.parametrize("name", ["windows", "fallback", "beams"])
def test_a_sink_that_takes_nothing_back_gets_each_window_when_it_is_certain(name):
    inputs, how = KINDS[name]
    file = io.StringIO()
    rows = len(inputs["input_features"])
    stream = streamed(inputs, how, sinks=[TextSink(file, tokenizer=tiny_tokenizer())])
    for _ in stream:
        pass
    if rows == 1:
        assert "".join(file.getvalue().split()) == spoken(stream.result.sequences)[0]
    else:
        assert "Retract" not in file.getvalue()
        assert all(text[:5] in "".join(file.getvalue().split()) for text in spoken(stream.result.sequences))


def test_a_sink_that_can_sees_everything():
    inputs, how = KINDS["fallback"]
    seen = []

    class Able(CallbackSink):
        retracts = True

        def take(self, event):
            seen.append(event)

    events = list(streamed(inputs, how, sinks=[Able(print)]).events())
    assert [type(event) for event in seen] == [type(event) for event in events]


def test_a_recording_of_windows_is_replayed(tmp_path):
    inputs, how = KINDS["fallback"]
    events = list(streamed(inputs, how, sinks=[RecordSink(tmp_path / "speech")]).events())
    again = list(replay(tmp_path / "speech").events())
    assert [type(event) for event in again] == [type(event) for event in events]
    told = [[(it.window, it.times) for it in each if isinstance(it, SpeechStep)] for each in (again, events)]
    assert told[0] == told[1]


def test_settings_by_row_are_refused():
    with pytest.raises(ArgumentError, match="one value for all rows"):
        generate_stream(whisper(), **sound((0.4, 0.4)), max_new_tokens=[3, 4])
