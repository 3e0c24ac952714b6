"""Time: per step, per token, to the first token, and of whole runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.harness import Row, benchmark, interleaved, ratio
from benchmarks.models import prompt, smollm2, tiny_llama
from unspool import bridge, generate_stream
from unspool.cache import grow_in_place

STEPS = 200


class _Clock:
    """A streamer that notes when each call came: the prompt first, then a call a token."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to do."""


def ours(model: PreTrainedModel, ids: torch.Tensor, count: int, **asked: Any) -> Callable[[], dict[str, float]]:
    """Times of a stream that is pulled and dropped."""

    def work() -> dict[str, float]:
        times = [time.perf_counter()]
        times.extend(time.perf_counter() for _ in generate_stream(model, ids, max_new_tokens=count, **asked))
        return _times(times)

    return work


def theirs(model: PreTrainedModel, ids: torch.Tensor, count: int, **asked: Any) -> Callable[[], dict[str, float]]:
    """Times of `generate()`, by the clock of a streamer; the whole only where it takes none."""

    def work() -> dict[str, float]:
        clock = _Clock()
        streamed = {} if (asked.get("num_beams") or 1) > 1 else {"streamer": clock}
        model.generate(ids, max_new_tokens=count, **streamed, **asked)
        if not streamed:
            return {"whole": time.perf_counter() - clock.times[0]}
        return _times([clock.times[0], *clock.times[2:]])

    return work


def _times(times: list[float]) -> dict[str, float]:
    found = {"first": times[1] - times[0], "whole": times[-1] - times[0]}
    if len(times) > 2:
        found["token"] = (times[-1] - times[1]) / (len(times) - 2)
    return found


def bare(model: PreTrainedModel, ids: torch.Tensor, count: int) -> Callable[[], dict[str, float]]:
    """Times of a loop of forwards and nothing else, over the same kind of cache as a stream's."""

    def work() -> dict[str, float]:
        times = [time.perf_counter()]
        cache = DynamicCache(config=model.config)
        grow_in_place(cache, ids.shape[1] + count)
        new, position = ids, torch.arange(ids.shape[1])[None]
        with torch.no_grad():
            for _ in range(count):
                out = model(
                    input_ids=new, position_ids=position, use_cache=True, logits_to_keep=1, **{bridge.CACHE: cache}
                )
                new = out.logits[:, -1].argmax(-1)[:, None]
                position = position[:, -1:] + 1
                times.append(time.perf_counter())
        return _times(times)

    return work


def _column(results: list[dict[str, float]], name: str) -> list[float]:
    return [result[name] for result in results]


@benchmark("engine")
def engine(runs: int) -> Iterator[Row]:
    """What a step costs beside its forward."""
    model, ids = tiny_llama(), prompt(16, 1000)
    works = (
        ours(model, ids, STEPS, do_sample=False),
        theirs(model, ids, STEPS, do_sample=False),
        bare(model, ids, STEPS),
    )
    mine, other, floor = (_column(found, "token") for found in interleaved(works, 3 * runs))
    yield ratio("time per step, 2-layer 64-wide Llama, over a bare loop of forwards", mine, floor, 1.10)
    yield ratio("the same for transformers' generate()", other, floor, None)


@benchmark("greedy")
def greedy(runs: int) -> Iterator[Row]:
    """Greedy search on a real model."""
    for length in (16, 512):
        model, ids = smollm2(), prompt(length, 40000)
        name = f"SmolLM2, prompt {length}"
        for what, count, times, bar in (("token", 64, runs, 1.00), ("first", 2, 3 * runs, 1.05)):
            works = (ours(model, ids, count, do_sample=False), theirs(model, ids, count, do_sample=False))
            mine, other = interleaved(works, times)
            work = f"{name}, 64 new: time per token" if what == "token" else f"{name}: time to first token"
            yield ratio(work, _column(mine, what), _column(other, what), bar)


@benchmark("samples")
def samples(runs: int) -> Iterator[Row]:
    """Several samples of one prompt."""
    model, ids = smollm2(), prompt(512, 40000)
    asked = {"do_sample": True, "num_return_sequences": 8}
    mine, other = interleaved((ours(model, ids, 1, **asked), theirs(model, ids, 1, **asked)), runs)
    yield ratio(
        "SmolLM2, prompt 512, 8 samples: time to first step", _column(mine, "first"), _column(other, "first"), 0.25
    )


@benchmark("beams")
def beams(runs: int) -> Iterator[Row]:
    """Beam search."""
    model = smollm2()
    asked = {"num_beams": 4, "do_sample": False}
    for length, count, bar in ((512, 1, 0.40), (512, 64, 0.70), (2048, 64, 0.50)):
        ids = prompt(length, 40000)
        mine, other = interleaved((ours(model, ids, count, **asked), theirs(model, ids, count, **asked)), runs)
        what = "time to first step" if count == 1 else f"whole run, {count} new"
        yield ratio(f"SmolLM2, 4 beams, prompt {length}: {what}", _column(mine, "whole"), _column(other, "whole"), bar)


@benchmark("look-up")
def look_up(runs: int) -> Iterator[Row]:
    """Prompt lookup on a text that repeats itself."""
    model, ids = smollm2(), prompt(32, 40000).repeat(1, 4)
    asked = {"prompt_lookup_num_tokens": 6, "do_sample": False}
    mine, other = interleaved((ours(model, ids, 48, **asked), theirs(model, ids, 48, **asked)), runs)
    yield ratio("SmolLM2, prompt lookup, 48 new: whole run", _column(mine, "whole"), _column(other, "whole"), 1.00)
