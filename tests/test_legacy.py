"""Streamers of the old kind: the same calls as from transformers, and its classes without their faults."""

from __future__ import annotations

import io
import queue
import threading
import warnings

import anyio
import pytest
import torch
import transformers
from transformers import TextIteratorStreamer as TheirIterator
from transformers import TextStreamer as TheirPrinter

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate, generate_stream
from unspool.errors import ArgumentError
from unspool.legacy import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer, shim
from unspool.sinks import TextSink


def noted(base, *args, **kwargs):
    """A user's subclass of a streamer that writes down what it is called with."""

    class Noted(base):
        def __init__(self):
            super().__init__(*args, **kwargs)
            self.calls = []

        def put(self, value):
            self.calls.append(("put", value.tolist(), value.dtype, value.device.type))
            super().put(value)

        def end(self):
            self.calls.append("end")
            super().end()

        def on_finalized_text(self, text, stream_end=False):
            self.calls.append((text, stream_end))

    return Noted()


class Bare(transformers.generation.streamers.BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


BASES = {
    "BaseStreamer": lambda: noted(Bare),
    "TextStreamer": lambda: noted(TheirPrinter, tiny_tokenizer(), skip_prompt=True),
    "TextIteratorStreamer": lambda: noted(TheirIterator, tiny_tokenizer()),
}
RUNS = {
    "greedy": ("llama", {}),
    "sampling": ("llama", {"do_sample": True}),
    "prompt lookup": ("llama", {"prompt_lookup_num_tokens": 3}),
    "an encoder-decoder": ("t5", {}),
    "a recurrent model": ("mamba", {}),
    "an ending by eos": ("llama", {"eos_token_id": list(range(4, 90))}),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("run", RUNS)
def test_a_users_streamer_sees_the_calls_that_transformers_makes(base, run):
    name, settings = RUNS[run]
    calls = []
    for make in (lambda model, **kwargs: model.generate(**kwargs), generate):
        streamer = BASES[base]()
        torch.manual_seed(1)
        make(tiny_model(name), **prompt(1), max_new_tokens=8, streamer=streamer, **settings)
        calls.append(streamer.calls)
    assert calls[0] == calls[1]
    assert calls[1].count("end") == 1


def test_a_streamer_for_batches_sees_the_calls_that_transformers_makes():
    calls = []
    for make in (lambda model, **kwargs: model.generate(**kwargs), generate):
        streamer = noted(Bare)
        make(tiny_model(), **prompt(3, ragged=True), max_new_tokens=6, streamer=streamer)
        calls.append(streamer.calls)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("way", ["end", "close", "error", "error before the first step", "drop"])
def test_end_comes_once_on_every_path(way):
    def broken(ids, scores):
        raise OSError("broken")

    streamer = noted(Bare)
    settings = {"logits_processor": [broken]} if way.startswith("error") else {}
    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=5, streamer=streamer, **settings)
    if way == "end":
        stream.to()
    elif way.startswith("error"):
        with pytest.raises(OSError, match="broken"):
            stream.to()
    else:
        next(stream)
        if way == "close":
            stream.close()
        del stream
    assert streamer.calls.count("end") == 1
    assert streamer.calls[-1] == "end"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("returned", [1, 2])
def test_under_beams_a_streamer_gets_the_first_sequence_of_each_prompt_as_it_settles(rows, returned):
    streamer = noted(Bare)
    settings = dict(num_beams=3, num_return_sequences=returned, max_new_tokens=8)
    ids = generate(tiny_model(), **prompt(rows), streamer=streamer, **settings)
    put = [call[1] for call in streamer.calls[1:-1]]
    assert streamer.calls[0][1] == prompt(rows)["input_ids"].tolist()
    assert torch.equal(torch.tensor(put).T, ids[::returned, prompt()["input_ids"].shape[1] :])
    settled = noted(Bare)
    for step in generate_stream(tiny_model(), **prompt(rows), streamer=settled, **settings):
        agreed = min(len(agreed) for agreed in step.beams.agreed)
        assert len(settled.calls) - 1 == agreed - prompt()["input_ids"].shape[1]


def test_what_is_no_streamer_is_refused_at_the_call():
    with pytest.raises(ArgumentError, match="no put and no end"):
        generate_stream(tiny_model(), **prompt(), streamer=object())


def test_a_streamer_is_called_deprecated_once_and_told_what_is_better(monkeypatch):
    monkeypatch.setattr(shim, "_warned", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            generate(tiny_model(), **prompt(), max_new_tokens=2, streamer=noted(Bare))
    (warning,) = [one for one in caught if issubclass(one.category, DeprecationWarning)]
    assert "TextSink" in str(warning.message)


# ------------------------------------------------------------------------------------------- drop-ins


def printed(capsys, streamer, make=generate, **settings):
    make(tiny_model(), **{**prompt(), "max_new_tokens": 6, **settings}, streamer=streamer)
    return capsys.readouterr().out


def theirs(model, **kwargs):
    return model.generate(**kwargs)


@pytest.mark.parametrize("settings", [{}, {"skip_prompt": True}, {"skip_special_tokens": True}], ids=str)
def test_text_printed_is_what_transformers_prints(capsys, settings):
    expected = printed(capsys, TheirPrinter(tiny_tokenizer(), **settings), theirs)
    assert printed(capsys, TextStreamer(tiny_tokenizer(), **settings)) == expected
    assert printed(capsys, TextStreamer(tiny_tokenizer(), **settings), theirs) == expected
    assert printed(capsys, TextStreamer(tiny_tokenizer(), **settings), theirs, prompt_lookup_num_tokens=3) == expected


@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2, "seed": 0}])
def test_batches_samples_and_beams_are_printed_with_labels(capsys, settings):
    out = printed(capsys, TextStreamer(tiny_tokenizer(), skip_prompt=True), **prompt(2), **settings)
    file = io.StringIO()
    stream = generate_stream(tiny_model(), **prompt(2), max_new_tokens=6, **settings)
    stream.to(TextSink(file, tokenizer=tiny_tokenizer(), skip_special_tokens=False))
    assert out == file.getvalue() + "\n"
    assert "[prompt 1, sample 0] " in out


def test_text_is_iterated_without_a_thread():
    model, expected = tiny_model(), TheirIterator(tiny_tokenizer())
    model.generate(**prompt(), max_new_tokens=6, streamer=expected)
    streamer, forwards = TextIteratorStreamer(tiny_tokenizer()), []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    generate_stream(model, **prompt(), max_new_tokens=6, streamer=streamer)
    pieces = []
    for piece in streamer:
        pieces.append(piece)
        assert len(forwards) <= len(pieces)
    handle.remove()
    assert "".join(pieces) == "".join(expected)
    assert len(pieces) > 3


@pytest.mark.parametrize("make", [generate, theirs])
def test_text_is_iterated_from_a_thread_as_in_transformers(make):
    expected, streamer = TheirIterator(tiny_tokenizer()), TextIteratorStreamer(tiny_tokenizer(), timeout=30)
    theirs(tiny_model(), **prompt(), max_new_tokens=6, streamer=expected)
    kwargs = dict(**prompt(), max_new_tokens=6, streamer=streamer)
    thread = threading.Thread(target=make, args=[tiny_model()], kwargs=kwargs)
    thread.start()
    assert "".join(streamer) == "".join(expected)
    thread.join()


def broken_at(length):
    def broken(ids, scores):
        if ids.shape[1] == length:
            raise OSError("half way")
        return scores

    return [broken]


@pytest.mark.parametrize("length", [7, 9])
@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_reaches_whoever_iterates_as_itself(threaded, length):
    streamer, pieces = TextIteratorStreamer(tiny_tokenizer(), skip_prompt=True, timeout=30), []
    kwargs = dict(**prompt(), max_new_tokens=6, streamer=streamer, logits_processor=broken_at(length))
    if threaded:

        def run():
            with pytest.raises(OSError, match="half way"):
                generate(tiny_model(), **kwargs)

        thread = threading.Thread(target=run)
        thread.start()
    else:
        generate_stream(tiny_model(), **kwargs)
    with pytest.raises(OSError, match="half way"):
        pieces.extend(iter(streamer))
    assert len(pieces) == length - 7
    if threaded:
        thread.join()


def test_an_error_before_the_first_step_reaches_whoever_iterates():
    model, streamer = tiny_model("t5"), TextIteratorStreamer(tiny_tokenizer())

    def broken(*_):
        raise OSError("no encoder")

    handle = model.get_encoder().register_forward_pre_hook(broken)
    generate_stream(model, **prompt(), max_new_tokens=6, streamer=streamer)
    with pytest.raises(OSError, match="no encoder"):
        next(streamer)
    handle.remove()


def test_nothing_from_another_thread_within_the_time_is_an_empty_queue():
    with pytest.raises(queue.Empty):
        next(TextIteratorStreamer(tiny_tokenizer(), timeout=0.01))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("threaded", [False, True])
def test_text_is_iterated_by_async_for(backend, threaded):
    expected = TheirIterator(tiny_tokenizer())
    theirs(tiny_model(), **prompt(), max_new_tokens=6, streamer=expected)

    async def read():
        streamer = AsyncTextIteratorStreamer(tiny_tokenizer(), timeout=30)
        kwargs = dict(**prompt(), max_new_tokens=6, streamer=streamer)
        if threaded:
            thread = threading.Thread(target=theirs, args=[tiny_model()], kwargs=kwargs)
            thread.start()
        else:
            generate_stream(tiny_model(), **kwargs)
        text = [piece async for piece in streamer]
        if threaded:
            thread.join()
        return "".join(text)

    assert anyio.run(read, backend=backend) == "".join(expected)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_errors_and_time_outs_reach_whoever_iterates_by_async_for(backend):
    async def read():
        streamer, pieces = AsyncTextIteratorStreamer(tiny_tokenizer(), skip_prompt=True), []
        kwargs = dict(max_new_tokens=6, streamer=streamer, logits_processor=broken_at(9))
        generate_stream(tiny_model(), **prompt(), **kwargs)
        pieces += [await anext(streamer), await anext(streamer)]
        with pytest.raises(OSError, match="half way"):
            await anext(streamer)
        assert all(pieces)
        with pytest.raises(TimeoutError):
            await anext(AsyncTextIteratorStreamer(tiny_tokenizer(), timeout=0.01))

    anyio.run(read, backend=backend)
