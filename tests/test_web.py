"""Streams as responses, over real sockets: a uvicorn, and clients that stay, leave, ask too much or come too many."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import threading
import time

import anyio
import httpx
import pytest
import uvicorn
import websockets.sync.client as websockets
from fastapi import FastAPI, Request, WebSocket
from httpx_sse import connect_sse

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate_stream
from unspool.stepping import close_all
from unspool.web import BodyLimit, Limits, Slots, ndjson_response, send_stream, sse_response, text_response

RESPONSES = {"sse": sse_response, "ndjson": ndjson_response, "text": text_response}


class Serving:
    """An application, served in a thread, whose model can be slowed down and watched."""

    def __init__(self) -> None:
        self.model = tiny_model()
        self.delay, self.forwards, self.fails_at = 0.0, 0, None
        self.streams = []
        self.slots = Slots(3, retry_after=7)
        self.model.register_forward_pre_hook(self._before)
        app = FastAPI()
        app.add_middleware(BodyLimit, max_bytes=1000)
        limits = Limits(prompt_tokens=20, new_tokens=500, stop_strings=2)

        @app.get("/{kind}")
        async def get(kind: str, new: int = 6, seed: int = 0, slots: bool = False):
            asked = {"slots": self.slots} if slots else {}
            more = {"keep_alive": 0.2} if kind == "sse" else {}
            return RESPONSES[kind](self.stream(new, seed), **asked, **more)

        @app.post("/sse")
        async def post(request: Request):
            body = await request.json()
            limits.check(
                prompt_tokens=len(body.get("prompt", "").split()),
                new_tokens=body.get("max_new_tokens"),
                stop_strings=body.get("stop", ()),
            )
            return sse_response(self.stream(body["max_new_tokens"]))

        @app.websocket("/ws")
        async def socket(websocket: WebSocket, new: int = 6):
            await websocket.accept()
            while (await websocket.receive_text()) == "go":
                await send_stream(websocket, self.stream(new))

        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="websockets-sansio"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def stream(self, new, seed=0):
        asked = dict(max_new_tokens=new, eos_token_id=None, do_sample=True, seed=seed, tokenizer=tiny_tokenizer())
        stream = generate_stream(self.model, **prompt(1), **asked)
        self.streams.append(stream)
        return stream

    def text(self, new=6, seed=0):
        stream = self.stream(new, seed)
        self.streams.remove(stream)
        return "".join(chunk.text for chunk in stream.text())

    def _before(self, *_):
        self.forwards += 1
        if self.fails_at is not None and self.forwards >= self.fails_at:
            raise OSError("the secret path")
        if self.delay:
            time.sleep(self.delay)

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url, self.ws = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/ws"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.should_exit = True
        self.thread.join(20)
        close_all()
        assert not self.thread.is_alive()

    def over(self):
        """Waits until every stream has been closed."""
        until(lambda: all(stream.result is not None and stream._ahead._ended for stream in self.streams))


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def serving():
    with Serving() as served:
        yield served


def events(served, path="/sse", **kwargs):
    with connect_sse(served.client, kwargs.pop("method", "GET"), path, **kwargs) as source:
        return list(source.iter_sse())


def test_server_sent_events_say_the_whole_text(serving):
    expected = serving.text()
    found = events(serving)
    assert (found[0].event, found[-1].event) == ("start", "end")
    assert [event.id for event in found] == [str(number) for number in range(len(found))]
    assert "".join(json.loads(event.data)["text"] for event in found if event.event == "text") == expected
    assert json.loads(found[-1].data)["complete"] is True


def test_lines_of_json_and_plain_text_say_it_too(serving):
    expected = serving.text()
    response = serving.client.get("/ndjson")
    records = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(record["text"] for record in records if record["type"] == "text") == expected
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert serving.client.get("/text").text == expected


@pytest.mark.parametrize("kind", RESPONSES)
def test_a_client_that_leaves_stops_the_model(serving, kind):
    serving.delay = 0.02
    with serving.client.stream("GET", f"/{kind}", params={"new": 400}) as response:
        for _ in response.iter_raw():
            break
    serving.over()
    count = serving.forwards
    time.sleep(0.1)
    assert serving.forwards == count < 60


def test_the_connection_is_kept_alive_during_a_long_prompt(serving):
    serving.delay = 0.7
    with serving.client.stream("GET", "/sse", params={"new": 1}) as response:
        lines = list(response.iter_lines())
    assert sum(line.startswith(": ping") for line in lines) >= 2
    assert ": prefill 0/7" in lines


@pytest.mark.parametrize("kind", ["sse", "ndjson"])
def test_the_error_record_leaks_nothing_and_the_log_has_it_all(serving, kind, caplog):
    serving.fails_at = 3
    body = serving.client.get(f"/{kind}").text
    records = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if "{" in line]
    assert [record["type"] for record in records if record["type"] != "prefill"][-1] == "error"
    assert sum(record["type"] == "text" and bool(record["text"]) for record in records) == 2
    assert "secret" not in body
    assert "OSError" not in body
    assert "the secret path" in caplog.text


def test_more_streams_than_there_is_room_for_are_told_to_come_back(serving):
    serving.delay, reading = 0.05, []
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            response = stack.enter_context(serving.client.stream("GET", "/sse", params={"new": 400, "slots": True}))
            assert response.status_code == 200
            reading.append(response.iter_raw())
            next(reading[-1])
        refused = serving.client.get("/sse", params={"slots": True})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "7"
    del reading
    until(lambda: serving.slots.free == 3)
    serving.delay = 0
    assert serving.client.get("/sse", params={"slots": True}).status_code == 200
    until(lambda: serving.slots.free == 3)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"prompt": "w " * 21, "max_new_tokens": 5}, 413, "21 tokens"),
        ({"max_new_tokens": 501}, 422, "more than the 500"),
        ({}, 422, "no max_new_tokens"),
        ({"max_new_tokens": 0}, 422, "asks for nothing"),
        ({"max_new_tokens": 5, "stop": ["a", "b", "c"]}, 422, "3 stop strings"),
        ({"max_new_tokens": 5, "stop": ["a" * 300]}, 422, "300 characters"),
        ({"prompt": "w" * 2000, "max_new_tokens": 5}, 413, "1000 bytes"),
    ],
)
def test_what_asks_for_too_much_is_refused_with_a_reason(serving, body, status, reason):
    response = serving.client.post("/sse", json=body)
    assert response.status_code == status
    assert reason in response.json()["detail"]
    assert serving.forwards == 0


def test_a_body_of_undeclared_length_is_refused_when_it_is_too_long(serving):
    def pieces():
        for _ in range(20):
            yield b" " * 100

    assert serving.client.post("/sse", content=pieces()).status_code == 413


def test_a_web_socket_gets_records_and_stays_open(serving):
    expected = serving.text()
    with websockets.connect(serving.ws) as socket:
        for _ in range(2):
            socket.send("go")
            records = [json.loads(socket.recv())]
            while records[-1]["type"] != "end":
                records.append(json.loads(socket.recv()))
            assert "".join(record["text"] for record in records if record["type"] == "text") == expected


def test_a_web_socket_can_ask_to_stop(serving):
    serving.delay = 0.02
    with websockets.connect(f"{serving.ws}?new=400") as socket:
        socket.send("go")
        while json.loads(socket.recv())["type"] != "text":
            pass
        socket.send(json.dumps({"type": "stop"}))
        while (last := json.loads(socket.recv()))["type"] != "end":
            pass
        assert last["finishes"] == [{"reason": "stopped", "detail": None}]
        assert last["steps"] < 60


def test_a_web_socket_that_disconnects_stops_the_model(serving):
    serving.delay = 0.02
    with websockets.connect(f"{serving.ws}?new=400") as socket:
        socket.send("go")
        socket.recv()
    serving.over()
    count = serving.forwards
    time.sleep(0.1)
    assert serving.forwards == count < 60


def crowd(served, seed, clients=50):
    """Many clients at once, of which half leave at random; gives what each of the others got."""
    luck = random.Random(seed)
    leaving = set(luck.sample(range(clients), clients // 2))
    got = {}

    async def visit(client, number):
        pieces = []
        async with client.stream("GET", "/ndjson", params={"new": 12, "seed": number}) as response:
            last = luck.randrange(1, 8) if number in leaving else None
            async for line in response.aiter_lines():
                record = json.loads(line)
                pieces.append(record.get("text", ""))
                if last is not None and sum(map(bool, pieces)) >= last:
                    return
        got[number] = "".join(pieces)

    async def main():
        limits = httpx.Limits(max_connections=clients)
        client = httpx.AsyncClient(base_url=served.url, timeout=60, limits=limits)
        async with client, anyio.create_task_group() as tasks:
            for number in range(clients):
                tasks.start_soon(visit, client, number)

    anyio.run(main)
    assert got.keys() >= set(range(clients)) - leaving
    return got


def check_crowd(served, seed, expected, clients=50):
    served.streams.clear()
    before = served.forwards
    got = crowd(served, seed, clients)
    served.over()
    assert all(text == expected[number] for number, text in got.items())
    seen = sum(stream.result.forwards for stream in served.streams)
    assert served.forwards - before == seen  # none was made after its stream was closed
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("unspool")]
    assert len(threads) == 1


def test_a_crowd_of_which_half_leaves_is_served_right(serving):
    expected = [serving.text(12, seed) for seed in range(16)]
    check_crowd(serving, 0, expected, clients=16)


@pytest.mark.slow
def test_fifty_clients_twenty_times_leave_nothing_behind(serving):
    expected = [serving.text(12, seed) for seed in range(50)]
    sizes = []
    for seed in range(20):
        check_crowd(serving, seed, expected)
        serving.streams.clear()
        gc.collect()
        sizes.append(len(gc.get_objects()))
    assert sizes[-1] < sizes[2] * 1.05
