"""What it costs to hand steps on: to a text sink, and to async code."""

from __future__ import annotations

import asyncio
import io
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import torch
from transformers import AsyncTextIteratorStreamer, GenerationConfig, TextStreamer

from benchmarks.harness import Row, benchmark, interleaved, ratio
from benchmarks.models import smollm2_tokenizer, tiny_llama
from unspool import Opening, Step, generate_stream
from unspool.sinks import TextSink

TOKENS = 4_000
STEPS = 200
MICROSECONDS = 150


@benchmark("text")
def text(runs: int) -> Iterator[Row]:
    """4,000 tokens without a line break, to a text sink and to transformers' streamer."""
    tokenizer = smollm2_tokenizer()
    words = " ".join(f"word{number}" for number in range(3 * TOKENS))
    ids = tokenizer(words)["input_ids"][: TOKENS + 1]
    works = [lambda: {"sink": _ours(tokenizer, ids, TOKENS)}, lambda: {"sink": _theirs(tokenizer, ids)}]
    ours, theirs = interleaved(works, runs)
    yield ratio(
        "streaming text of 4,000 tokens on one line: sink time, over transformers' streamer",
        [found["sink"] for found in ours],
        [found["sink"] for found in theirs],
        0.10,
    )
    short = [lambda: {"sink": _ours(tokenizer, ids, TOKENS)}, lambda: {"sink": _ours(tokenizer, ids, TOKENS // 8)}]
    long_runs, short_runs = interleaved(short, runs)
    yield ratio(
        "the same: time per token of 4,000 tokens, over that of 500",
        [found["sink"] for found in long_runs],
        [found["sink"] * 8 for found in short_runs],
        None,
    )


def _ours(tokenizer, ids: list[int], count: int) -> float:
    sink = TextSink(io.StringIO(), tokenizer=tokenizer)
    live, scores = torch.ones(1, dtype=torch.bool), torch.zeros(1, len(tokenizer))
    steps = [
        Step(i, i, torch.tensor([token]), live, scores, scores, None, range(i, i + 1))
        for i, token in enumerate(ids[1 : count + 1])
    ]
    begin = time.perf_counter()
    sink.open(Opening(torch.tensor([ids[:1]]), 1, GenerationConfig()))
    for step in steps:
        sink.take(step)
    sink.close(None, None)
    return time.perf_counter() - begin


class _Quiet(TextStreamer):
    def __init__(self, tokenizer) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.file = io.StringIO()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.file.write(text)


def _theirs(tokenizer, ids: list[int]) -> float:
    streamer = _Quiet(tokenizer)
    tensors = [torch.tensor([token]) for token in ids[1:]]
    begin = time.perf_counter()
    streamer.put(torch.tensor([ids[:1]]))
    for tensor in tensors:
        streamer.put(tensor)
    streamer.end()
    return time.perf_counter() - begin


@benchmark("async")
def asynchronous(runs: int) -> Iterator[Row]:
    """Async iteration over a 2-layer model: beside the loop without async, and beside transformers' async streamer."""
    model, ids, tokenizer = tiny_llama(), torch.randint(4, 100, (1, 16)), smollm2_tokenizer()

    def plain() -> dict[str, float]:
        return _per_step(lambda: sum(1 for _ in generate_stream(model, ids, max_new_tokens=STEPS)))

    def by_async() -> dict[str, float]:
        async def main() -> None:
            async for _ in generate_stream(model, ids, max_new_tokens=STEPS):
                pass

        return _per_step(lambda: asyncio.run(main()))

    one, other = interleaved([by_async, plain], runs)
    added = [a["step"] - b["step"] for a, b in zip(one, other, strict=True)]
    low, _, high = (value * 1e6 / MICROSECONDS for value in statistics.quantiles(added, n=4))
    middle = statistics.median(added) * 1e6 / MICROSECONDS
    yield Row(f"async for, 2-layer model: time added per step, over {MICROSECONDS} µs", middle, 1.0, (low, high), runs)

    def our_text() -> dict[str, float]:
        async def main() -> None:
            async for _ in generate_stream(model, ids, max_new_tokens=STEPS).text(tokenizer):
                pass

        return _per_step(lambda: asyncio.run(main()))

    def their_text() -> dict[str, float]:
        async def main() -> None:
            streamer = AsyncTextIteratorStreamer(tokenizer, skip_prompt=True)
            kwargs = dict(inputs=ids, max_new_tokens=STEPS, streamer=streamer)
            thread = threading.Thread(target=model.generate, kwargs=kwargs)
            thread.start()
            async for _ in streamer:
                pass
            thread.join()

        return _per_step(lambda: asyncio.run(main()))

    mine, theirs = interleaved([our_text, their_text], runs)
    yield ratio(
        "async iteration over text, 2-layer model: time per step, over transformers' async streamer",
        [found["step"] for found in mine],
        [found["step"] for found in theirs],
        0.50,
    )


def _per_step(work: Callable[[], object]) -> dict[str, float]:
    begin = time.perf_counter()
    work()
    return {"step": (time.perf_counter() - begin) / STEPS}
