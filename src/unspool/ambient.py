"""The modes in which stages work, and which the caller's code never sees."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

import torch

__all__ = ["without_gradients"]

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
