"""Every sink is closed exactly once on every path, and the result is readable after each."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from tiny import prompt, tiny_model
from unspool import FinishReason, generate_stream
from unspool.errors import SinkError


class Recorder:
    """A sink that writes down what happens to it."""

    def __init__(self):
        self.calls, self.result, self.error = [], None, None

    def open(self, opening):
        self.calls.append("open")

    def take(self, event):
        self.calls.append(type(event).__name__)

    def close(self, result, error):
        self.calls.append("close")
        self.result, self.error = result, error


def started(sink, **settings):
    return generate_stream(tiny_model(), **prompt(2), max_new_tokens=5, eos_token_id=None, sinks=[sink], **settings)


def test_a_run_to_its_end_opens_feeds_and_closes():
    sink = Recorder()
    started(sink).to()
    assert sink.calls == ["open", "PrefillProgress", "PrefillProgress", *["Step"] * 5, "close"]
    assert sink.result.complete


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}], ids=["rows", "beams"])
@pytest.mark.parametrize("way", ["close", "close twice", "with", "drop", "break in with"])
def test_leaving_early_closes_once_with_a_partial_result(way, settings):
    sink, stream = Recorder(), None
    stream = started(sink, **settings)
    if way in ("with", "break in with"):
        with stream:
            for _ in stream:
                break
    else:
        next(stream)
        if way == "drop":
            del stream
        else:
            stream.close()
            if way == "close twice":
                stream.close()
    assert sink.calls.count("close") == 1
    assert sink.calls[-1] == "close"
    assert sink.result.steps == 1
    assert {finish.reason for finish in sink.result.finishes} == {FinishReason.STOPPED}
    assert sink.error is None


def fail_inside(stream, error):
    with stream:
        next(stream)
        raise error


def test_an_error_of_the_consumer_reaches_the_sinks():
    sink, error = Recorder(), ValueError("mine")
    with pytest.raises(ValueError, match="mine"):
        fail_inside(started(sink), error)
    assert (sink.calls.count("close"), sink.error) == (1, error)


def test_an_interrupt_in_a_forward_ends_cleanly():
    sink, stream = Recorder(), None
    stream = started(sink)
    next(stream)

    def interrupt(*_):
        raise KeyboardInterrupt

    stream._source.plan.model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert sink.calls.count("close") == 1
    assert stream.result.finishes[0].reason is FinishReason.INTERRUPTED
    assert stream.result.steps == 1


def test_closing_from_another_thread_waits_for_the_step_under_way():
    sink = Recorder()
    stream = started(sink)
    running, go_on = threading.Event(), threading.Event()

    def wait(*_):
        running.set()
        go_on.wait(10)

    next(stream)
    stream._source.plan.model.register_forward_pre_hook(wait)
    puller = threading.Thread(target=lambda: list(stream))
    puller.start()
    running.wait(10)
    stream.close()
    assert "close" not in sink.calls
    go_on.set()
    puller.join(10)
    assert sink.calls.count("close") == 1
    assert stream.result.steps == 2


def test_one_sink_that_fails_to_close_does_not_keep_the_others_open():
    class Stuck(Recorder):
        def close(self, result, error):
            raise OSError("stuck")

    other = Recorder()
    with pytest.raises(OSError, match="stuck"):
        started(Stuck()).to(other)
    assert other.calls[-1] == "close"


def test_what_is_no_sink_is_refused_and_so_is_one_that_comes_too_late():
    with pytest.raises(SinkError, match="no open"):
        started(object())
    stream = started(Recorder())
    next(stream)
    with pytest.raises(SinkError, match="too late"):
        stream.to(Recorder())


class Streamer:
    """A streamer of the old kind that writes down its calls."""

    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(value.tolist())

    def end(self):
        self.calls.append("end")


@pytest.mark.parametrize("settings", [{}, {"do_sample": True}, {"prompt_lookup_num_tokens": 3}])
def test_an_old_streamer_gets_the_calls_that_transformers_makes(settings):
    model, theirs, ours = tiny_model(), Streamer(), Streamer()
    asked = {"max_new_tokens": 6, "do_sample": False, **settings}
    torch.manual_seed(0)
    model.generate(**prompt(), streamer=theirs, **asked)
    torch.manual_seed(0)
    generate_stream(model, **prompt(), streamer=ours, **asked).to()
    assert ours.calls == theirs.calls


def test_an_old_streamer_is_ended_once_after_an_error_too():
    model, streamer = tiny_model(), Streamer()
    stream = generate_stream(model, **prompt(), streamer=streamer, max_new_tokens=6)
    next(stream)
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(stream)
    assert streamer.calls.count("end") == 1
    assert streamer.calls[-1] == "end"


@pytest.mark.parametrize("settings", ["", "num_beams=2"])
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)"])
def test_a_stream_that_is_held_when_the_interpreter_ends_is_closed(settings, end):
    code = f"""
from tiny import prompt, tiny_model
from unspool import generate_stream

def noting():
    try:
        while True:
            yield
    finally:
        print("closed", flush=True)

stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=9, sinks=[noting], {settings})
step = next(stream)
{end}
"""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")
