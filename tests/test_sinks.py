"""What sinks promise, each and together: opened once, fed in order, closed once, whatever the others do."""

from __future__ import annotations

import gc
import io
import threading
import time

import anyio
import pytest
import torch

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, PrefillProgress, Step, generate_stream
from unspool.errors import ArgumentError, SinkError
from unspool.sinks import (
    CallbackSink,
    ChannelSink,
    JsonlSink,
    MetricsSink,
    ProbeSink,
    RecordSink,
    SseSink,
    StopStream,
    TeeSink,
    TextSink,
    ThrottleSink,
    replay,
)


class Notes:
    """A sink that writes down what happens to it, and fails where it is told to."""

    def __init__(self, fails: str = ""):
        self.calls, self.fails, self.error, self.result = [], fails, None, None

    def _note(self, call):
        self.calls.append(call)
        if call == self.fails:
            raise OSError(call)

    def open(self, opening):
        self._note("open")

    def take(self, event):
        self._note("prefill" if isinstance(event, PrefillProgress) else f"step {event.index}")

    def close(self, result, error):
        self.result, self.error = result, error
        self._note("close")


ALL = ["open", "prefill", "prefill", "step 0", "step 1", "step 2", "close"]


def stream_of(rows=2, new=3, **settings):
    return generate_stream(tiny_model(), **prompt(rows), max_new_tokens=new, eos_token_id=None, **settings)


# ------------------------------------------------------------------------------------------- the protocol


def test_several_sinks_take_the_same_stream_in_their_order():
    order = []
    first, second = (CallbackSink(lambda step, name=name: order.append((name, step.index))) for name in "ab")
    stream_of().to(first, second)
    assert order == [(name, index) for index in range(3) for name in "ab"]


def test_through_lets_the_loop_go_on_seeing_steps():
    notes = Notes()
    assert [step.index for step in stream_of().through(notes)] == [0, 1, 2]
    assert notes.calls == ALL


@pytest.mark.parametrize("fails", ["open", "prefill", "step 1"])
def test_a_failing_sink_ends_the_stream_and_all_are_closed_with_its_error(fails):
    before, failing, after = Notes(), Notes(fails), Notes()
    with pytest.raises(OSError, match=fails) as caught:
        stream_of().to(before, failing, after)
    assert [sink.calls.count("close") for sink in (before, failing, after)] == [1, 1, 1]
    assert before.error is failing.error is after.error is caught.value
    assert before.calls[:-1] == ALL[: ALL.index(fails) + 1]
    assert after.calls[:-1] == ALL[: ALL.index(fails)]


def test_a_sink_that_fails_at_its_close_keeps_no_other_from_its_own():
    failing, after = Notes("close"), Notes()
    with pytest.raises(OSError, match="close"):
        stream_of().to(failing, after)
    assert after.calls == ALL


def error_after(step, error):
    return error(step.index)


@pytest.mark.parametrize("way", ["end", "break", "close", "error", "interrupt", "collection"])
def test_a_sink_is_closed_once_on_every_path(way):
    notes = Notes()
    stream = stream_of(sinks=[notes])
    if way == "end":
        list(stream)
    elif way in ("error", "interrupt"):
        error = {"error": ValueError, "interrupt": KeyboardInterrupt}[way]
        with pytest.raises(error), stream:
            raise error_after(next(stream), error)
        assert isinstance(notes.error, error)
    else:
        next(stream)
        if way == "close":
            stream.close()
    del stream
    gc.collect()
    assert notes.calls.count("close") == 1
    assert notes.result.steps == (3 if way == "end" else 1)


def test_a_sink_may_stop_the_stream_as_its_consumer_may():
    def until_second():
        while True:
            event = yield
            if isinstance(event, Step) and event.index == 1:
                raise StopStream

    notes = Notes()
    result = stream_of(new=50).to(notes, until_second)
    assert notes.calls == ["open", "prefill", "prefill", "step 0", "step 1", "close"]
    assert notes.error is None
    assert {finish.reason for finish in result.finishes} == {FinishReason.STOPPED}


@pytest.mark.parametrize("wrong", [object(), Notes, print, None, "text"], ids=str)
def test_what_is_no_sink_is_refused_at_the_call(wrong):
    with pytest.raises(SinkError, match="is not a sink"):
        stream_of(sinks=[wrong])


def test_a_sink_that_comes_late_is_refused():
    stream = stream_of()
    next(stream)
    with pytest.raises(SinkError, match="too late"):
        stream.to(Notes())


# -------------------------------------------------------------------------------------- generators as sinks


def taking(log):
    try:
        while True:
            log.append(type((yield)).__name__)
    except GeneratorExit:
        log.append("closed")
        raise
    except Exception as error:
        log.append(repr(error))
        raise


def test_a_generator_function_receives_events_by_yield():
    log = []

    def sink():
        yield from taking(log)

    stream_of().to(sink)
    assert log == ["PrefillProgress", "PrefillProgress", "Step", "Step", "Step", "closed"]


def test_a_generator_function_with_an_argument_gets_the_opening():
    seen = []

    def sink(opening):
        seen.append(opening.rows)
        while True:
            yield

    stream_of(rows=2, num_return_sequences=2, do_sample=True).to(sink)
    assert seen == [4]


def test_a_generator_not_yet_begun_is_a_sink():
    log = []
    stream_of().to(taking(log))
    assert log[-1] == "closed"


def test_a_generator_sees_the_error_that_ends_the_stream():
    log = []
    with pytest.raises(OSError, match="step 1"):
        stream_of().to(taking(log), Notes("step 1"))
    assert log[-1] == repr(OSError("step 1"))


def test_a_generator_that_returns_gets_no_more():
    def first_two():
        yield
        yield

    assert stream_of().to(first_two).complete


def test_a_generator_that_fails_ends_the_stream():
    def failing():
        yield
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        stream_of().to(failing)


# ------------------------------------------------------------------------------------------ tee, throttle


def test_in_a_tee_the_others_go_on_when_one_fails():
    failing, other = Notes("step 1"), Notes()
    with pytest.raises(OSError, match="step 1"):
        stream_of().to(TeeSink(failing, other))
    assert other.calls == ALL
    assert failing.calls == ["open", "prefill", "prefill", "step 0", "step 1", "close"]


def test_a_throttle_joins_what_comes_in_between_and_loses_nothing():
    now, chunks = [0.0], []
    sink = ThrottleSink(chunks.append, 1.0, tokenizer=tiny_tokenizer(), clock=lambda: now[0])
    whole = list(stream_of(new=12).text(tiny_tokenizer()))
    for step in stream_of(new=12).through(sink):
        now[0] += 0.3
        assert len([chunk for chunk in chunks if chunk.row == 0]) <= 1 + step.index // 4 + 1
    for row in range(2):
        mine = [chunk for chunk in chunks if chunk.row == row]
        assert len(mine) < 8
        for name in ("text", "ids", "logprobs"):
            joined = [part for chunk in mine for part in getattr(chunk, name)]
            assert joined == [part for chunk in whole if chunk.row == row for part in getattr(chunk, name)]
        assert mine[-1].finish is not None


def test_a_throttle_gives_what_it_held_when_the_stream_fails():
    chunks = []
    sink = ThrottleSink(chunks.append, 60.0, tokenizer=tiny_tokenizer())
    with pytest.raises(OSError, match="step 2"):
        stream_of(rows=1, new=9).to(sink, Notes("step 2"))
    assert sum(len(chunk.ids) for chunk in chunks) == 3
    assert chunks[-1].finish.reason is FinishReason.ERROR


# ----------------------------------------------------------------------------------------------- channel


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_channel_hands_the_same_steps_to_another_thread():
    plain = [step.tokens.tolist() for step in stream_of()]
    channel = ChannelSink()
    thread = in_a_thread(lambda: stream_of(sinks=[channel]).to())
    assert [step.tokens.tolist() for step in channel.stream] == plain
    thread.join()
    assert channel.stream.result.complete


def test_a_channel_has_text_and_sinks_of_its_own():
    plain = list(stream_of().text(tiny_tokenizer()))
    channel, notes = ChannelSink(tokenizer=tiny_tokenizer()), Notes()
    thread = in_a_thread(lambda: stream_of(sinks=[channel]).to())
    assert list(channel.stream.through(notes).text()) == plain
    thread.join()
    assert notes.calls == ALL


def test_a_channel_that_is_full_slows_the_model():
    made = []
    channel = ChannelSink(2)
    thread = in_a_thread(lambda: stream_of(new=20).to(CallbackSink(lambda step: made.append(step.index)), channel))
    next(channel.stream)
    time.sleep(0.1)
    assert len(made) <= 4
    assert len(list(channel.stream)) == 19
    thread.join()


def test_an_error_comes_out_of_a_channel_as_itself_after_the_steps_before_it():
    channel, raised, seen = ChannelSink(), [], []

    def run():
        try:
            stream_of().to(channel, Notes("step 1"))
        except OSError as error:
            raised.append(error)

    thread = in_a_thread(run)
    with pytest.raises(OSError, match="step 1") as caught:
        seen.extend(step.index for step in iter(channel.stream))
    thread.join()
    assert caught.value is raised[0]


@pytest.mark.parametrize("left_by", ["close", "drop"])
def test_a_reader_that_leaves_ends_the_stream(left_by):
    channel, results = ChannelSink(2), []
    stream = stream_of(new=400, sinks=[channel])
    thread = in_a_thread(lambda: results.append(stream.to()))
    next(channel.stream)
    channel.stream.close()
    thread.join(30)
    assert results[0].steps < 20
    assert results[0].finishes[0].reason is FinishReason.STOPPED


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_channel_is_read_with_async_for_too(backend):
    plain = [step.tokens.tolist() for step in stream_of()]
    channel = ChannelSink()

    async def read():
        thread = in_a_thread(lambda: stream_of(sinks=[channel]).to())
        assert [step.tokens.tolist() async for step in channel.stream] == plain
        thread.join()

    anyio.run(read, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_reader_that_waits_in_vain_can_be_cancelled(backend):
    async def read():
        with anyio.move_on_after(0.1) as scope:
            async with ChannelSink().stream as stream:
                await anext(stream)
        assert scope.cancelled_caught

    anyio.run(read, backend=backend)


@pytest.mark.parametrize("maxsize", [0, -1, 1.5, True])
def test_a_channel_needs_room(maxsize):
    with pytest.raises(ArgumentError, match="maxsize"):
        ChannelSink(maxsize)


# ------------------------------------------------------------------------------------------ record, replay

RUNS = {
    "greedy": {},
    "samples": {"do_sample": True, "seed": 1, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "hidden states": {"output_hidden_states": True},
    "encoder-decoder": {"model": "t5", "output_hidden_states": True},
}


def recorded(name="llama", *, model="llama", **settings):
    file = io.BytesIO()
    rows = 1 if "prompt_lookup_num_tokens" in settings else 2
    stream = generate_stream(tiny_model(model), **prompt(rows), max_new_tokens=4, **settings)
    steps = list(stream.through(RecordSink(file)))
    return file, steps, stream.result


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    if hasattr(one, "items"):
        return type(one) is type(other) and all(same(one[key], other[key]) for key in [*one, *other])
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_replay_gives_the_same_steps_exactly(settings):
    file, steps, result = recorded(**settings)
    stream = replay(file)
    again = list(stream)
    assert len(again) == len(steps)
    assert all(map(same, again, steps))
    assert torch.equal(stream.result.sequences, result.sequences)
    assert stream.result.finishes == result.finishes


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_sinks_see_in_a_replay_what_they_saw_in_the_run(settings):
    file, _, _ = recorded(**settings)
    name = settings.get("model", "llama")
    rows = 1 if "prompt_lookup_num_tokens" in settings else 2
    rest = {key: value for key, value in settings.items() if key != "model"}
    tokenizer, outs = tiny_tokenizer(), []
    for stream in (
        generate_stream(tiny_model(name), **prompt(rows), max_new_tokens=4, **rest),
        replay(file),
    ):
        files = [io.StringIO() for _ in range(3)]
        text, lines, events = files
        stream.to(
            TextSink(text, tokenizer=tokenizer),
            JsonlSink(lines, tokenizer=tokenizer, top_logprobs=2),
            SseSink(events, tokenizer=tokenizer, records="text"),
        )
        outs.append([file.getvalue() for file in files])
    assert outs[0] == outs[1]


def test_what_was_left_out_of_a_recording_is_none():
    file = io.BytesIO()
    stream_of().to(RecordSink(file, leave_out=["logits", "outputs"]))
    step = next(replay(file))
    assert step.logits is None
    assert step.outputs is None
    assert step.logprobs.shape == (2,)


def test_the_replay_of_a_run_that_failed_fails_at_the_same_place():
    file = io.BytesIO()
    with pytest.raises(OSError, match="step 1"):
        stream_of().to(RecordSink(file), Notes("step 1"))
    stream, seen = replay(file), []
    with pytest.raises(SinkError, match="OSError: step 1"):
        seen.extend(iter(stream))
    assert stream.result.steps == 2


def test_a_file_that_is_no_recording_is_refused():
    with pytest.raises(ArgumentError, match="no recording"):
        replay(io.BytesIO(b"something else"))


# -------------------------------------------------------------------------------------------------- probe


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_probe_keeps_what_the_steps_had(name):
    probe = ProbeSink(hidden_states=[0, -1], attentions=[1])
    model = tiny_model(name, attention="eager")
    asked = {"output_hidden_states": True, "output_attentions": True}
    stream = generate_stream(model, **prompt(2), max_new_tokens=3, eos_token_id=None, **asked)
    prefix = "decoder_" if name == "t5" else ""
    steps = list(stream.through(probe))
    for layer in (0, -1):
        expected = torch.stack([step.outputs[prefix + "hidden_states"][layer][:, -1] for step in steps])
        assert torch.equal(torch.from_numpy(probe.numpy()[f"hidden_states.{layer}"]), expected)
    expected = [step.outputs[prefix + "attentions"][1][:, :, -1] for step in steps]
    assert all(map(torch.equal, probe.steps()["attentions.1"], expected))
    filled = probe.numpy()["attentions.1"]
    assert filled.shape == (3, *expected[-1].shape)
    assert (filled[0][..., expected[0].shape[-1] :] == 0).all()


def test_a_probe_reduces_as_it_is_asked():
    sinks = [ProbeSink(hidden_states=[1], reduce=reduce) for reduce in ("mean", lambda t: t[:, 0, :2], None)]
    steps = list(stream_of(output_hidden_states=True).through(*sinks))
    states = [step.outputs.hidden_states[1] for step in steps]
    for sink, reduce in zip(sinks, (lambda t: t.mean(1), lambda t: t[:, 0, :2], lambda t: t), strict=True):
        assert all(map(torch.equal, sink.steps()["hidden_states.1"], map(reduce, states)))
    with pytest.raises(SinkError, match="differs in shape"):
        sinks[2].numpy()


def test_a_probe_is_saved_as_safetensors(tmp_path):
    from safetensors.numpy import load_file

    probe = ProbeSink(hidden_states=[-1])
    stream_of(output_hidden_states=True).to(probe)
    probe.save(tmp_path / "states.safetensors")
    loaded = load_file(tmp_path / "states.safetensors")
    assert (loaded["hidden_states.-1"] == probe.numpy()["hidden_states.-1"]).all()


def test_a_probe_under_beams_says_which_row_each_continues():
    probe = ProbeSink(hidden_states=[-1])
    steps = list(stream_of(num_beams=3, output_hidden_states=True).through(probe))
    assert probe.parents == [step.beams.parents.tolist() for step in steps]


@pytest.mark.parametrize(
    ("probe", "settings", "message"),
    [
        (dict(hidden_states=[-1]), {}, "output_hidden_states=True"),
        (dict(attentions=[0]), {"output_hidden_states": True}, "output_attentions=True"),
        (dict(hidden_states=[99]), {"output_hidden_states": True}, "layer 99"),
    ],
)
def test_a_probe_that_would_get_nothing_says_so(probe, settings, message):
    with pytest.raises(ArgumentError, match=message):
        stream_of(**settings).to(ProbeSink(**probe))


@pytest.mark.parametrize("wrong", [{}, {"hidden_states": [0], "reduce": "first"}])
def test_a_probe_with_nothing_to_do_is_refused(wrong):
    with pytest.raises(ArgumentError):
        ProbeSink(**wrong)


# ------------------------------------------------------------------------------------------------ metrics


def test_metrics_tell_times_by_the_clock_and_count_tokens():
    now = [0.0]
    sink = MetricsSink(clock=lambda: now[0])
    stream = stream_of(rows=2, new=4, sinks=[sink])
    began = None
    for step in stream:
        began = sink._began
        now[0] = began + 2.0 + step.index
        if step.index == 0:
            now[0] = began + 3.0
    found = sink.metrics
    assert (found.prompt_tokens, found.new_tokens, found.steps, found.forwards) == (14, 8, 4, 4)
    assert found.total == pytest.approx(5.0)
    assert found.tokens_per_second == pytest.approx(8 / 5)
    assert len(found.finishes) == 2


def test_metrics_count_what_a_cache_held_and_what_drafts_gave():
    from unspool import prefill

    model, ids = tiny_model(), prompt(1)["input_ids"]
    sink = MetricsSink()
    generate_stream(model, ids, cache=prefill(model, ids).cache, max_new_tokens=2).to(sink)
    assert sink.metrics.reused_tokens == ids.shape[1] - 1
    drafted = MetricsSink()
    steps = list(stream_of(rows=1, new=9, prompt_lookup_num_tokens=3).through(drafted))
    assert drafted.metrics.drafted == sum(step.drafted for step in steps)
    assert drafted.metrics.forwards == len({step.forward for step in steps})


def test_the_time_to_the_first_token_counts_the_encoder():
    model = tiny_model("t5")
    with_delay = model.get_encoder().register_forward_pre_hook(lambda *_: time.sleep(0.05))
    sink = MetricsSink()
    generate_stream(model, **prompt(1), max_new_tokens=2).to(sink)
    with_delay.remove()
    assert sink.metrics.first_token >= 0.05


def test_opentelemetry_gets_a_span_and_metrics_by_its_conventions():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from unspool.sinks import OtelSink

    spans, reader, tracing = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    metering = MeterProvider([reader])
    sink = OtelSink("tiny", tracer=tracing.get_tracer("t"), meter=metering.get_meter("t"))
    stream_of(do_sample=True, temperature=0.5, sinks=[sink]).to()
    (span,) = spans.get_finished_spans()
    assert span.name == "text_completion tiny"
    assert span.attributes["gen_ai.request.temperature"] == 0.5
    assert span.attributes["gen_ai.usage.input_tokens"] == 14
    assert span.attributes["gen_ai.usage.output_tokens"] == 6
    assert span.attributes["gen_ai.response.finish_reasons"] == ("max_length", "max_length")
    found = {metric.name for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics}
    assert found == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.token.usage",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }
    failing = OtelSink("tiny", tracer=tracing.get_tracer("t"), meter=metering.get_meter("t"))
    with pytest.raises(OSError, match="step 1"):
        stream_of().to(failing, Notes("step 1"))
    span = spans.get_finished_spans()[-1]
    assert span.attributes["error.type"] == "OSError"
    assert not span.status.is_ok
    metering.shutdown()


def test_an_output_of_a_models_own_class_is_played_again():
    file = io.BytesIO()
    generate_stream(tiny_model("mamba"), **prompt(1, 4), max_new_tokens=2).to(RecordSink(file))
    assert [tuple(step.outputs.logits.shape) for step in replay(file)] == [(1, 1, 160)] * 2
