"""Loops that share nothing with the common one: they are run as they are, and listened to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import GenerationConfig

from unspool import bridge
from unspool.records import Event, Finish, Opening, Result

if TYPE_CHECKING:
    from unspool.plan import Request

__all__ = ["AloneLoop"]


class AloneLoop:
    """One run of a class's own `generate`, and the state of it.

    Args:
        request: What the caller asked for.
        emit: Hands an event to whoever pulls, and returns when the next one is pulled.
        opened: Takes the opening, once the run begins.

    Attributes:
        steps: Steps made.
        forwards: Forwards of the decoder.
        finishes: How each row ended; None while it goes on.
        ids: int64 `(rows, length)`: the ids so far.
    """

    method: ClassVar[str] = ""
    """What the way of decoding is called."""

    def __init__(self, request: Request, emit: Callable[[Event], None], opened: Callable[[Opening], None]) -> None:
        self.model, self.emit, self._opened, self.tokenizer = request.model, emit, opened, request.tokenizer
        self.steps = self.forwards = self.prompt_length = 0
        self.finishes: list[Finish | None] = []
        self.ids = torch.zeros(0, 0, dtype=torch.long)

    def run(self, given: dict[str, Any]) -> Any:
        """Runs the class's `generate`, and returns what it returns.

        Args:
            given: Its arguments.
        """
        raise NotImplementedError

    def begin(self, prompt: torch.Tensor, config: GenerationConfig) -> None:
        """Tells that the run begins.

        Args:
            prompt: int64 `(rows, length)`: what each row continues.
            config: The settings.
        """
        self.ids, self.prompt_length = prompt, prompt.shape[1]
        self.finishes = [None] * prompt.shape[0]
        self._opened(
            Opening(
                prompt_ids=prompt,
                rows_per_prompt=1,
                config=config,
                tokenizer=self.tokenizer,
                is_encoder_decoder=bool(self.model.config.is_encoder_decoder),
                method=self.method,
                began=time.perf_counter(),
            )
        )

    def live(self) -> torch.Tensor:
        """Which rows go on: bool `(rows,)`."""
        return torch.tensor([finish is None for finish in self.finishes], device=self.ids.device)

    def result(self, otherwise: Finish) -> Result:
        """What the run has come to so far."""
        return Result(
            sequences=self.ids,
            prompt_length=self.prompt_length,
            finishes=tuple(finish or otherwise for finish in self.finishes),
            steps=self.steps,
            forwards=self.forwards,
        )

    def release(self) -> None:
        """Lets go of all that is large."""


def settings(model: Any, given: Mapping[str, Any]) -> GenerationConfig:
    """The settings of such a run, as far as the common config has them."""
    source, config = getattr(model, "generation_config", None), GenerationConfig()
    for name in bridge.settings(config):
        value = given.get(name, getattr(given.get("generation_config"), name, getattr(source, name, None)))
        if value is not None:
            setattr(config, name, value)
    return config
