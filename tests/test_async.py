"""The same stream in `async for`, on asyncio and trio: stepped on a thread of the model's, a bounded number ahead."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import anyio
import pytest
import torch

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, PrefillProgress, generate, generate_stream
from unspool.errors import ArgumentError, SinkError, StreamError
from unspool.stepping import close_all

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    close_all()
    for thread in threading.enumerate():
        if thread.name.startswith("unspool"):  # its model is gone, and it is ending
            thread.join(10)
            assert not thread.is_alive()


class Watch:
    """A sink that counts steps and says on which threads it was called."""

    def __init__(self):
        self.steps, self.closed, self.error, self.threads = 0, 0, None, set()

    def open(self, opening):
        self.threads.add(threading.current_thread().name)

    def take(self, event):
        self.steps += not isinstance(event, PrefillProgress)
        self.threads.add(threading.current_thread().name)

    def close(self, result, error):
        self.threads.add(threading.current_thread().name)
        self.closed, self.error, self.result = self.closed + 1, error, result


@contextlib.contextmanager
def forwards(model, before=lambda count: None):
    """Counts the forwards of a model, and does something before each."""
    made = []

    def hook(*_):
        before(len(made))
        made.append(threading.current_thread().name)

    handle = model.register_forward_pre_hook(hook)
    try:
        yield made
    finally:
        handle.remove()


def stream_of(model=None, *, rows=2, new=5, **settings):
    return generate_stream(model or tiny_model(), **prompt(rows), max_new_tokens=new, eos_token_id=None, **settings)


async def until(condition, seconds=20):
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.005)


METHODS = {
    "greedy": {},
    "sampling": {"do_sample": True, "seed": 3},
    "beams": {"num_beams": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
async def test_the_steps_are_those_of_the_loop_without_async(settings):
    rows = 1 if "prompt_lookup_num_tokens" in settings else 2
    plain = [step.tokens.tolist() for step in stream_of(rows=rows, **settings)]
    stream = stream_of(rows=rows, **settings)
    assert [step.tokens.tolist() async for step in stream] == plain
    assert stream.result.complete


async def test_text_and_events_are_those_of_the_loop_without_async():
    tokenizer = tiny_tokenizer()
    plain = list(stream_of().text(tokenizer))
    assert [chunk async for chunk in stream_of().text(tokenizer)] == plain
    kinds = [type(event) for event in stream_of(prefill_chunk_size=3).events()]
    assert [type(event) async for event in stream_of(prefill_chunk_size=3).events()] == kinds


async def test_all_streams_of_a_model_are_stepped_and_closed_on_one_thread_that_is_not_the_loops():
    watches = [Watch(), Watch()]
    async with anyio.create_task_group() as tasks:
        for watch in watches:
            tasks.start_soon(stream_of(sinks=[watch]).ato)
    assert watches[0].threads == watches[1].threads
    assert len(watches[0].threads) == 1
    assert threading.current_thread().name not in watches[0].threads


@pytest.mark.parametrize("lookahead", [0, 1, 3])
async def test_no_more_steps_are_made_ahead_than_asked_for(lookahead):
    model = tiny_model()
    with forwards(model) as made:
        async with stream_of(model, new=30, lookahead=lookahead) as stream:
            await anyio.sleep(0.05)
            assert not made
            for taken in range(1, 4):
                await anext(stream)
                await until(lambda: len(made) >= taken + lookahead)  # noqa: B023
                await anyio.sleep(0.02)
                assert len(made) == taken + lookahead


@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_a_lookahead_that_is_no_number_of_steps_is_refused(value):
    with pytest.raises(ArgumentError, match="lookahead"):
        stream_of(lookahead=value)


async def test_async_with_is_closed_at_its_end():
    watch = Watch()
    async with stream_of(new=100, sinks=[watch]) as stream:
        async for step in stream:
            if step.index == 2:
                break
    assert watch.closed == 1
    assert watch.steps in (3, 4)
    assert stream.result.finishes[0].reason is FinishReason.STOPPED
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_leaving_by_break_stops_and_closes_without_the_garbage_collector():
    watch, model = Watch(), tiny_model()
    gc.disable()
    try:
        with forwards(model) as made:
            async for step in stream_of(model, new=100, sinks=[watch]):
                if step.index == 2:
                    break
            await until(lambda: watch.closed)
            assert len(made) <= 4
    finally:
        gc.enable()
    assert watch.closed == 1


async def test_a_stream_that_is_kept_after_break_waits_and_goes_on_where_it_was():
    model = tiny_model()
    whole = [step.tokens.tolist() for step in stream_of(model)]
    with forwards(model) as made:
        stream = stream_of(model)
        seen = []
        async for step in stream:
            seen.append(step.tokens.tolist())
            if len(seen) == 2:
                break
        await anyio.sleep(0.05)
        assert len(made) == 3
        seen += [step.tokens.tolist() async for step in stream]
    assert seen == whole


async def test_a_view_that_takes_over_misses_nothing_that_was_made_ahead():
    tokenizer = tiny_tokenizer()
    whole = [step.tokens[0].item() for step in stream_of(rows=1)]
    async with stream_of(rows=1, lookahead=3) as stream:
        first = await anext(stream)
        await anyio.sleep(0.05)
        rest = [token async for chunk in stream.text(tokenizer) for token in chunk.ids]
    assert [first.tokens[0].item(), *rest] == whole


async def test_a_cancelled_scope_costs_one_more_forward_at_most_and_closes():
    watch, model = Watch(), tiny_model()
    with forwards(model, before=lambda count: time.sleep(0.05)) as made:
        with anyio.move_on_after(0.18) as scope:
            async with stream_of(model, new=100, sinks=[watch], lookahead=0) as stream:
                async for _ in stream:
                    before = len(made)
        assert scope.cancelled_caught
        assert watch.closed == 1
        assert len(made) <= before + 1
        await anyio.sleep(0.1)
        assert len(made) <= before + 1


async def test_a_cancelled_task_that_holds_the_stream_without_async_with_stops_it_too():
    watch, model = Watch(), tiny_model()
    with forwards(model, before=lambda count: time.sleep(0.05)):
        stream = stream_of(model, new=100, sinks=[watch])
        with anyio.move_on_after(0.12):
            async for _ in stream:
                pass
        await until(lambda: watch.closed)


async def test_a_long_prompt_is_left_at_its_next_chunk():
    model = tiny_model()
    ids = torch.randint(4, 100, (1, 200))
    with forwards(model, before=lambda count: time.sleep(0.02)) as made:
        with anyio.move_on_after(0.1):
            async with generate_stream(model, ids, max_new_tokens=5, prefill_chunk_size=4) as stream:
                await anext(stream)
        count = len(made)
        await anyio.sleep(0.1)
        assert 0 < len(made) == count < 50


async def test_an_error_arrives_as_itself_after_the_steps_before_it():
    class Broken(Exception):
        pass

    def break_at_third(count):
        if count == 3:
            raise Broken("in the model")

    watch, seen, model = Watch(), [], tiny_model()

    async def consume():
        async for step in stream_of(model, sinks=[watch], lookahead=5):
            seen.append(step.index)
            await anyio.sleep(0.02)

    with forwards(model, before=break_at_third), pytest.raises(Broken, match="in the model") as caught:
        await consume()
    assert seen == [0, 1, 2]
    assert any(frame.name == "break_at_third" for frame in traceback.extract_tb(caught.tb))
    assert watch.error is caught.value
    assert watch.closed == 1


async def test_an_error_of_the_consumers_reaches_sinks():
    watch = Watch()

    async def consume():
        async with stream_of(sinks=[watch]) as stream:
            async for step in stream:
                step.index / 0

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert isinstance(watch.error, ZeroDivisionError)
    assert watch.closed == 1


async def test_a_sink_that_fails_while_closing_is_heard_of():
    class Failing(Watch):
        def close(self, result, error):
            super().close(result, error)
            raise OSError("disk full")

    sink = Failing()
    with pytest.raises(OSError, match="disk full"):
        async with stream_of(sinks=[sink]) as stream:
            await anext(stream)
    assert sink.closed == 1


class Awaited:
    """A sink that is awaited, and fails where it is told to."""

    def __init__(self, fails=None):
        self.calls, self.fails, self.error = [], fails, None

    async def _note(self, call):
        await anyio.sleep(0)
        self.calls.append(call)
        if call == self.fails:
            raise OSError(call)

    async def open(self, opening):
        await self._note("open")

    async def take(self, event):
        await self._note("prefill" if isinstance(event, PrefillProgress) else event.index)

    async def close(self, result, error):
        self.error = error
        await self._note("close")


async def test_an_async_sink_is_awaited_with_every_event_and_closed_once():
    sink, watch = Awaited(), Watch()
    stream = stream_of(new=3, sinks=[sink, watch])
    assert [step.index async for step in stream] == [0, 1, 2]
    await stream.aclose()
    assert sink.calls == ["open", "prefill", "prefill", 0, 1, 2, "close"]
    assert watch.closed == 1


@pytest.mark.parametrize("fails", ["open", "prefill", 1])
async def test_an_async_sink_that_fails_ends_the_stream_and_all_are_closed(fails):
    sink, other, watch = Awaited(fails), Awaited(), Watch()
    with pytest.raises(OSError, match=str(fails)) as caught:
        await stream_of(new=30).ato(sink, other, watch)
    assert (sink.calls.count("close"), other.calls.count("close"), watch.closed) == (1, 1, 1)
    assert sink.error is other.error is watch.error is caught.value


async def test_an_async_sink_is_closed_by_leaving_async_with_and_by_cancelling():
    for cancelled in (False, True):
        sink, model = Awaited(), tiny_model()
        with forwards(model, before=lambda count: time.sleep(0.02)), anyio.move_on_after(0.1 if cancelled else 20):
            async with stream_of(model, new=100, sinks=[sink]) as stream:
                async for step in stream:
                    if step.index == 2 and not cancelled:
                        break
        assert sink.calls.count("close") == 1
        assert sink.error is None


async def test_an_async_sink_sees_the_error_of_the_model():
    def broken(count):
        if count == 2:
            raise OSError("half way")

    sink, model = Awaited(), tiny_model()
    with forwards(model, before=broken), pytest.raises(OSError, match="half way") as caught:
        await stream_of(model, new=9).ato(sink)
    assert sink.calls[-2:] == [1, "close"]
    assert sink.error is caught.value


def test_an_async_sink_in_a_plain_loop_is_refused():
    with pytest.raises(SinkError, match="async for"):
        stream_of(sinks=[Awaited()]).to()


async def test_events_read_ahead_for_another_view_do_not_disturb_the_steps():
    async with stream_of(new=3, lookahead=4, prefill_chunk_size=2) as stream:
        await anext(stream.events())
        await anyio.sleep(0.05)
        assert [step.index async for step in stream] == [0, 1, 2]


async def test_streams_of_one_model_take_turns_and_give_what_each_gives_alone():
    model, order = tiny_model(), []
    settings = [{"do_sample": True, "seed": seed} for seed in range(3)]
    alone = [[step.tokens.tolist() for step in stream_of(model, new=8, **setting)] for setting in settings]
    seen = [[], [], []]

    async def consume(number):
        async for step in stream_of(model, new=8, **settings[number]):
            order.append(number)
            seen[number].append(step.tokens.tolist())

    with forwards(model, before=lambda count: time.sleep(0.005)):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(consume, number)
    assert seen == alone
    counts = [[order[: i + 1].count(number) for number in range(3)] for i in range(len(order))]
    assert all(max(count) - min(count) <= 3 for count in counts)


async def test_two_models_stream_at_once_on_two_threads():
    models = [tiny_model(), tiny_model("gpt2")]
    arrived = threading.Barrier(2)

    def meet(count):
        if count == 2:
            arrived.wait(10)  # passes only if both are in a forward at the same time

    with forwards(models[0], before=meet) as one, forwards(models[1], before=meet) as other:
        async with anyio.create_task_group() as tasks:
            for model in models:
                tasks.start_soon(stream_of(model).ato)
    assert len(set(one)) == len(set(other)) == 1
    assert set(one) != set(other)


async def test_two_tasks_that_wait_for_one_stream_are_told():
    model, refused = tiny_model(), []

    async def take(stream):
        try:
            await anext(stream)
        except anyio.BusyResourceError:
            refused.append(True)

    with forwards(model, before=lambda count: time.sleep(0.05)):
        async with stream_of(model) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(take, stream)
            tasks.start_soon(take, stream)
    assert refused == [True]


async def test_a_stream_in_async_for_is_not_stepped_by_hand():
    async with stream_of() as stream:
        await anext(stream)
        with pytest.raises(StreamError, match="async for"):
            next(stream)


async def test_closing_without_waiting_is_seen_after_the_step_under_way():
    watch = Watch()
    stream = stream_of(new=100, sinks=[watch])
    await anext(stream)
    stream.close()
    await until(lambda: watch.closed)
    await stream.aclose()
    await stream.aclose()
    assert watch.closed == 1


async def test_closing_before_the_first_step_runs_nothing():
    model = tiny_model()
    with forwards(model) as made:
        async with stream_of(model):
            pass
        stream = stream_of(model)
        await stream.aclose()
        assert [step async for step in stream] == []
    assert not made


async def test_the_callers_autocast_and_context_hold_on_the_models_thread():
    name, seen = contextvars.ContextVar("name", default="nobody"), []
    name.set("somebody")
    model = tiny_model()
    note = forwards(model, before=lambda count: seen.append((torch.is_autocast_enabled("cpu"), name.get())))
    with note, torch.autocast("cpu", dtype=torch.bfloat16):
        steps = [step.logits async for step in stream_of(model, new=2)]
        plain = [step.logits for step in stream_of(model, new=2)]
    assert torch.equal(torch.stack(steps), torch.stack(plain))
    assert seen[:2] == [(True, "somebody")] * 2


async def test_the_loop_goes_on_while_the_model_steps():
    ticks, model = 0, tiny_model()

    async def tick():
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    with forwards(model, before=lambda count: time.sleep(0.1)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await stream_of(model).ato()
            tasks.cancel_scope.cancel()
    assert ticks > 15


@pytest.mark.slow
async def test_a_ticker_beside_a_slow_model_is_never_50_ms_late():
    late, model = [], tiny_model()

    async def tick():
        due = time.perf_counter()
        while True:
            due = max(due + 0.01, time.perf_counter())
            await anyio.sleep(due - time.perf_counter())
            late.append(time.perf_counter() - due)

    with forwards(model, before=lambda count: time.sleep(0.2)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            async for _ in stream_of(model, new=10).text(tiny_tokenizer()):
                pass
            tasks.cancel_scope.cancel()
    assert len(late) > 100
    assert max(late) < 0.05


def test_the_thread_ends_with_the_model():
    model = tiny_model("gpt2").__class__(tiny_model("gpt2").config).eval()
    before = set(threading.enumerate())
    anyio.run(stream_of(model).ato)
    (thread,) = set(threading.enumerate()) - before
    del model
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


async def test_close_all_ends_streams_and_threads_and_models_stream_again():
    watch, model = Watch(), tiny_model()
    stream = stream_of(model, new=100, sinks=[watch])
    await anext(stream)
    await anyio.to_thread.run_sync(close_all)
    assert watch.closed == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unspool")]
    assert [step async for step in stream] == []
    ids = await stream_of(model).ato()
    assert torch.equal(ids.sequences, generate(model, **prompt(2), max_new_tokens=5, eos_token_id=None))


def script(body: str) -> subprocess.Popen:
    head = """
    import sys, anyio, torch, time
    from tiny import prompt, tiny_model, tiny_tokenizer
    from unspool import generate_stream

    class Watch:
        def open(self, opening): pass
        def take(self, event): pass
        def close(self, result, error): print("closed", flush=True)

    model = tiny_model()
    slow = model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    stream = generate_stream(model, **prompt(2), max_new_tokens=400, eos_token_id=None, sinks=[Watch()])
    """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-c", code]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=paths)


def test_an_interpreter_that_ends_with_open_streams_ends_and_closes_them():
    process = script("""
    async def main():
        await anext(stream)
        print("one", flush=True)
    anyio.run(main)
    """)
    with process:
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out.split(), errors) == (0, ["one", "closed"], "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupt_in_the_middle_of_a_step_ends_cleanly(backend):
    process = script(f"""
    async def main():
        async with stream:
            async for step in stream:
                print("step", flush=True)
    try:
        anyio.run(main, backend={backend!r})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """)
    with process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert first == "step\n"
    assert process.returncode == 0
    assert out.split()[-2:] == ["closed", "interrupted"]
    assert errors == ""


# -------------------------------------------------------------------------------------------------------- commands

PLAIN = dict(max_new_tokens=6, do_sample=False, eos_token_id=None)


async def test_an_awaited_stream_takes_commands_between_two_steps_when_none_is_made_ahead():
    model, ids = tiny_model(), prompt(1, 5)
    plain = generate_stream(model, **ids, **PLAIN)
    expected = [next(plain).tokens.tolist()]
    plain.force([7, 8])
    expected += [next(plain).tokens.tolist(), next(plain).tokens.tolist()]
    expected.append(plain.replace(torch.tensor([9])).tokens.tolist())
    plain.rewind(2)
    plain.update(repetition_penalty=2.0)
    expected += [step.tokens.tolist() for step in plain]
    async with generate_stream(model, **ids, **PLAIN, lookahead=0) as stream:
        made = [(await anext(stream)).tokens.tolist()]
        stream.force([7, 8])
        made += [(await anext(stream)).tokens.tolist(), (await anext(stream)).tokens.tolist()]
        made.append(stream.replace(torch.tensor([9])).tokens.tolist())
        stream.rewind(2)
        stream.update(repetition_penalty=2.0)
        made += [step.tokens.tolist() async for step in stream]
    assert made == expected


async def test_a_row_of_an_awaited_stream_can_be_stopped_and_the_stream_forked():
    async with generate_stream(tiny_model(), **prompt(2, 5), **PLAIN, lookahead=0) as stream:
        await anext(stream)
        (branch,) = stream.fork()
        stream.stop(0)
        rest = [step async for step in stream]
        other = [step async for step in branch]
    assert not any(bool(step.live[0]) for step in rest[1:])
    assert [step.tokens[1] for step in rest] == [step.tokens[1] for step in other]
    assert all(bool(step.live[0]) for step in other)


async def test_text_that_is_awaited_is_taken_back_as_the_stream_is():
    async with generate_stream(tiny_model(), **prompt(1, 5), **PLAIN, lookahead=0) as stream:
        text, chunks = "", stream.text(tiny_tokenizer())
        text += (await anext(chunks)).text
        text += (await anext(chunks)).text
        stream.rewind(2)
        async for chunk in chunks:
            text = text[: len(text) - chunk.back] + chunk.text
    plain = generate_stream(tiny_model(), **prompt(1, 5), **PLAIN).text(tiny_tokenizer())
    assert text == "".join(chunk.text for chunk in plain)


async def test_a_command_is_refused_while_steps_are_made_ahead_and_the_stream_goes_on():
    async with generate_stream(tiny_model(), **prompt(1, 5), **PLAIN, lookahead=2) as stream:
        await anext(stream)
        with pytest.raises(StreamError, match="lookahead=0"):
            stream.stop()
        assert len([step async for step in stream]) == 5


async def test_a_command_before_an_awaited_stream_has_begun_reads_the_prompt_there_and_then():
    async with generate_stream(tiny_model(), **prompt(1, 5), **PLAIN, lookahead=0) as stream:
        stream.force([7])
        steps = [step async for step in stream]
    assert steps[0].tokens.tolist() == [7]
    assert len(steps) == 6


async def test_a_command_after_the_end_of_an_awaited_stream_is_refused():
    async with generate_stream(tiny_model(), **prompt(1, 5), **PLAIN, lookahead=0) as stream:
        async for _ in stream:
            pass
        with pytest.raises(StreamError, match="over"):
            stream.stop()
