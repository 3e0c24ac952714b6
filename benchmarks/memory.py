"""Peak memory above the model, of whole processes: each run is one of its own."""

from __future__ import annotations

import contextlib
import gc
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.harness import Row, benchmark
from benchmarks.models import prompt, smollm2, tiny_llama


def peak(call: str, module: str = "memory") -> int:
    """What a call of a function of a benchmark adds to the peak of a process of its own, in bytes."""
    code = f"from benchmarks import {module}; {module}.{call}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@contextlib.contextmanager
def added() -> Iterator[None]:
    """Prints by how many bytes the work inside raises the peak of this process above what it holds now."""
    gc.collect()
    try:  # Linux: the peak so far, such as that of loading the model, is forgotten
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    else:
        before = _status("VmRSS")
    yield
    highest = _status("VmHWM") if Path("/proc/self/status").exists() else None
    print(((highest or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) - before) * 1024)


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def hidden_states(which: str, count: int, *, whole: bool = False) -> None:
    """A run of `count` steps with hidden states on; `whole` tells the peak of the process instead of what is added."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    from unspool import bridge, generate_stream

    torch.set_num_threads(1)
    small = tiny_llama().config.to_dict()
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 64, "max_position_embeddings": 4096}
    model = LlamaForCausalLM(LlamaConfig(**{**small, **sizes})).eval()
    ids = prompt(8, 900)
    asked = {"output_hidden_states": True, "return_dict_in_generate": True, "do_sample": False, "use_cache": True}
    for _ in generate_stream(model, ids, max_new_tokens=4, **asked):  # whatever is allocated once
        pass
    held = StaticCache(config=model.config, max_cache_len=8 + 512)  # of one size, so that only steps can differ
    for _ in generate_stream(model, ids, max_new_tokens=4, cache=held, **asked):
        pass
    held.reset()  # writes to all of it, so that none of its memory comes later
    with added():
        if which == "stream":
            for _ in generate_stream(model, ids, max_new_tokens=count, cache=held, **asked):
                pass
        else:
            model.generate(ids, max_new_tokens=count, **{bridge.CACHE: held}, **asked)
    if whole:
        print(_status("VmHWM") * 1024)


def long_beams(which: str) -> None:
    """Beam search over a long prompt."""
    from unspool import generate_stream

    model, ids, asked = smollm2(), prompt(2048, 40000), {"num_beams": 4, "do_sample": False, "max_new_tokens": 64}
    with added():
        if which == "stream":
            for _ in generate_stream(model, ids, **asked):
                pass
        else:
            model.generate(ids, **asked)


@benchmark("memory")
def memory(runs: int) -> Iterator[Row]:
    """Hidden states of every step, dropped by the consumer; and beams over a long prompt."""
    times, both = min(runs, 3), ("stream", "generate")
    found = {
        (which, count): statistics.median(peak(f"hidden_states({which!r}, {count})") for _ in range(times))
        for which in both
        for count in (64, 512)
    }
    grown = {which: found[which, 512] - found[which, 64] for which in both}
    whole = statistics.median(peak("hidden_states('stream', 64, whole=True)") for _ in range(times))
    name = "peak memory of a process with hidden states, 512 steps over 64: {}"
    yield Row(name.format("stream"), (whole + grown["stream"]) / whole, 1.05, runs=times)
    yield Row(name.format("transformers"), (whole + grown["generate"]) / whole, None, runs=times)
    name = "hidden states, dropped by the consumer: growth of memory from 64 to 512 steps, over transformers'"
    yield Row(name, max(0, grown["stream"]) / grown["generate"], 0.05, runs=times)
    beams = {which: statistics.median(peak(f"long_beams({which!r})") for _ in range(times)) for which in both}
    name = "SmolLM2, 4 beams, prompt 2048: peak memory above the model, 64 new"
    yield Row(name, beams["stream"] / beams["generate"], 1.00, runs=times)
