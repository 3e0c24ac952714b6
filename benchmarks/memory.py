"""Peak memory above the model, of whole processes: each run is one of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

import torch

from benchmarks.harness import Row, benchmark
from benchmarks.models import prompt, tiny_llama


def peak(which: str, count: int) -> int:
    """The bytes by which a run of `count` steps with hidden states on raises the peak of its process."""
    code = f"from benchmarks.memory import measure; measure({which!r}, {count})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def measure(which: str, count: int) -> None:
    """Prints what a run adds to the peak of this process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from unspool import generate_stream

    torch.set_num_threads(1)
    small = tiny_llama().config.to_dict()
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 64, "max_position_embeddings": 4096}
    model = LlamaForCausalLM(LlamaConfig(**{**small, **sizes})).eval()
    ids = prompt(8, 900)
    asked = {"output_hidden_states": True, "return_dict_in_generate": True, "do_sample": False, "use_cache": True}
    for _ in generate_stream(model, ids, max_new_tokens=4, **asked):  # whatever is allocated once
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = {"cache_implementation": "static", "max_length": 8 + 512}  # of one size, so that only steps can differ
    if which == "stream":
        for number, _ in enumerate(generate_stream(model, ids, **asked, **cache), start=1):
            if number == count:
                break
    else:
        model.generate(ids, **asked, **{**cache, "max_length": 8 + count})
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


@benchmark("memory")
def memory(runs: int) -> Iterator[Row]:
    """Hidden states of every step, dropped by the consumer."""
    import statistics

    found = {}
    for which in ("stream", "generate"):
        for count in (64, 512):
            found[which, count] = statistics.median(peak(which, count) for _ in range(min(runs, 3)))
    ratio_ours = found["stream", 512] / found["stream", 64]
    yield Row("peak memory with hidden states, 512 steps over 64: stream", ratio_ours, 1.05, runs=min(runs, 3))
    ratio_theirs = found["generate", 512] / found["generate", 64]
    yield Row("the same for transformers' generate()", ratio_theirs, None, runs=min(runs, 3))
