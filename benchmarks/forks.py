"""A tree of short branches from one long prompt, beside calls of `generate()` that each read it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.harness import Row, benchmark, interleaved, ratio
from benchmarks.memory import added, peak
from benchmarks.models import prompt, smollm2
from unspool import generate_stream

BRANCHES, TOKENS, PROMPT = 64, 16, 512


def forked() -> None:
    """The branches of one stream, pulled side by side."""
    stream = generate_stream(smollm2(), prompt(PROMPT, 40000), max_new_tokens=TOKENS, do_sample=True, eos_token_id=None)
    branches = stream.fork(BRANCHES, seed=0)
    steps = sum(1 for _ in zip(*branches, strict=True))
    assert steps == TOKENS


def separate() -> None:
    """As many calls, whose caches are kept, as a program does that goes on from them."""
    model, ids = smollm2(), prompt(PROMPT, 40000)
    asked = {"max_new_tokens": TOKENS, "do_sample": True, "eos_token_id": None, "return_dict_in_generate": True}
    held = [model.generate(ids, **asked) for _ in range(BRANCHES)]
    assert len(held) == BRANCHES


def of_forks(which: str) -> None:
    """Prints what one of the two adds to the memory of this process."""
    smollm2()
    with added():
        {"forked": forked, "separate": separate}[which]()


@benchmark("forks")
def forks(runs: int) -> Iterator[Row]:
    """Time and memory of 64 branches of 16 tokens from a prompt of 512."""
    times = min(runs, 3)

    def timed(work):
        def measured() -> dict[str, float]:
            begun = time.perf_counter()
            work()
            return {"whole": time.perf_counter() - begun}

        return measured

    mine, other = interleaved((timed(forked), timed(separate)), times)
    name = f"SmolLM2, {BRANCHES} branches of {TOKENS} tokens from a prompt of {PROMPT}"
    columns = [[result["whole"] for result in results] for results in (mine, other)]
    yield ratio(f"{name}: time over separate calls", columns[0], columns[1], 0.15)
    found = {
        which: statistics.median(peak(f"of_forks({which!r})", "forks") for _ in range(times))
        for which in ("forked", "separate")
    }
    yield Row(f"{name}: memory over separate caches", found["forked"] / found["separate"], 0.25, runs=times)
