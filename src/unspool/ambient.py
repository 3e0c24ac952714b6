"""The modes and the randomness in which stages work, and which the caller's code never sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = ["autocast_now", "standing_in", "without_gradients"]

P = ParamSpec("P")
Y = TypeVar("Y")
S = TypeVar("S")
R = TypeVar("R")


def without_gradients(stage: Callable[P, Generator[Y, S, R]]) -> Callable[P, Generator[Y, S, R]]:
    """Runs a generator function with gradients off, and out of inference mode, only while it works.

    Both are entered at each resumption and left at each `yield`, so the consumer keeps its own modes, and no
    tensor of inference mode reaches it.
    """
    # Leaving inference mode turns gradients on, so they are turned off inside of it.
    return torch.inference_mode(False)(torch.no_grad()(stage))


def autocast_now(device: torch.device | None) -> AbstractContextManager[Any]:
    """The autocast of the thread that asks, to be entered on another: torch keeps it for each thread."""
    if device is None or not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type))


@contextlib.contextmanager
def standing_in(generator: torch.Generator) -> Iterator[None]:
    """Puts a generator in the place of torch's global source of randomness."""
    kind = generator.device.type
    devices = [] if kind == "cpu" else [generator.device]
    source = (
        torch.default_generator
        if kind == "cpu"
        else getattr(torch, kind).default_generators[generator.device.index or 0]
    )
    with torch.random.fork_rng(devices=devices, device_type="cuda" if kind == "cpu" else kind):
        source.set_state(generator.get_state())
        yield
        generator.set_state(source.get_state())
