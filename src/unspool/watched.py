"""Loops that a model's class brings along, watched from inside.

Some classes replace not what is around the sampling loop but the loop itself: a frame of sound isn't picked as a token
is. Such a loop runs as it is. What it asks, the model, the processors and the criteria, is listened to, and each time
it asks the criteria whether to go on, a step is made of what was heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.families.registry import particular_family, template_of
from unspool.records import Event, Finish, FinishReason, Opening, PrefillProgress, Result

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["WatchedLoop"]


class WatchedLoop:
    """One run of a model's own sampling loop, heard from outside. It is the state of that run.

    Args:
        model: The model.
        emit: Hands an event to whoever pulls, and returns when the next one is pulled.
        opened: Takes the opening, once the loop begins.

    Attributes:
        ids: The ids so far: int64 `(rows, length)`, or `(rows, length, codebooks)`.
        steps: Steps made.
        forwards: Forwards of the model.
        finishes: How each row ended; None while it goes on.
        heard: What the forward and the family's taps gave last, by the method's name.
    """

    def __init__(
        self, model: PreTrainedModel, emit: Callable[[Event], None], opened: Callable[[Opening], None]
    ) -> None:
        self.model = model
        self.family = particular_family(model) or template_of(model)
        self.steps = self.forwards = 0
        self.ids: torch.Tensor | None = None
        self.finishes: list[Finish | None] = []
        self._emit, self._opened = emit, opened
        self.heard: dict[str, Any] = {}
        self._outputs: Any = None
        self._logits: torch.Tensor | None = None
        self._scores: torch.Tensor | None = None
        self._prompt_length = 0

    def stand_in(self) -> PreTrainedModel:
        """The model with its loop, its forward and some other methods listened to."""
        taps = {name: self._tap(name) for name in ("forward", *self.family.taps)}
        return bridge.stand_in(self.model, taps, sample=lambda host, ids, **given: self._run(host, ids, **given))

    def _tap(self, name: str) -> Callable[..., Any]:
        def method(host: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
            made = self.heard[name] = getattr(type(self.model), name)(host, *args, **kwargs)
            self.forwards += name == "forward"
            return made

        return method

    def _run(
        self,
        host: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **rest: Any,
    ) -> Any:
        self.ids, self._prompt_length = input_ids, input_ids.shape[1]
        self.finishes = [None] * input_ids.shape[0]
        self._opened(
            Opening(
                prompt_ids=input_ids,
                rows_per_prompt=generation_config.num_return_sequences or 1,
                config=generation_config,
                is_encoder_decoder=self.model.config.is_encoder_decoder,
                method="sample" if generation_config.do_sample else "greedy_search",
                began=time.perf_counter(),
            )
        )
        self._emit(PrefillProgress(0, self._prompt_length))
        rest["logits_processor"] = _HeardProcessors(logits_processor, self._scored)
        rest["stopping_criteria"] = _HeardCriteria(stopping_criteria, self._asked)
        return bridge.own_sample(self.model, host, input_ids, generation_config=generation_config, **rest)

    def _scored(self, logits: torch.Tensor, scores: torch.Tensor) -> None:
        self._logits, self._scores, self._outputs = logits, scores, self.heard["forward"]

    def _asked(self, ids: torch.Tensor, done: torch.Tensor) -> None:
        """Makes a step of what was heard since the last one."""
        outputs = self.heard["forward"] if self._outputs is None else self._outputs
        logits = self._logits if self._logits is not None else outputs.logits[:, -1].float()
        scores = self._scores if self._scores is not None else logits
        if not self.steps:
            self._emit(PrefillProgress(self._prompt_length, self._prompt_length))
        if ids.ndim == 3 and self.ids is not None and self.ids.ndim == 2:  # only frames are returned, not the text
            self._prompt_length = 0
        live = torch.tensor([finish is None for finish in self.finishes], device=ids.device)
        ended = self._ended(done, live)
        self.ids = ids
        length = ids.shape[1] - 1
        step = self.family.record(
            self.model,
            self,
            index=self.steps,
            forward=self.forwards - 1,
            tokens=ids[:, -1],
            live=live,
            ended=ended,
            logits=logits,
            scores=scores,
            outputs=outputs_of.strip(outputs),
            positions=range(length, length + 1),
        )
        self.steps += 1
        self._outputs = self._logits = self._scores = None
        self._emit(step)

    def _ended(self, done: torch.Tensor, live: torch.Tensor) -> dict[int, Finish]:
        ended = {}
        for row in (done.to(live.device) & live).nonzero().flatten().tolist():
            ended[row] = self.finishes[row] = Finish(FinishReason.CRITERION)
        return ended

    def result(self, otherwise: Finish) -> Result:
        """What the run has come to so far."""
        ids = self.ids if self.ids is not None else torch.zeros(0, 0, dtype=torch.long)
        return Result(
            sequences=ids,
            prompt_length=self._prompt_length,
            finishes=tuple(finish or otherwise for finish in self.finishes),
            steps=self.steps,
            forwards=self.forwards,
        )

    def release(self) -> None:
        """Lets go of all that is large."""
        self._outputs = self._logits = self._scores = None
        self.heard.clear()


class _HeardProcessors(LogitsProcessorList):
    """Processors whose logits and scores are told."""

    def __init__(self, processors: LogitsProcessorList, tell: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__(processors)
        self._tell = tell

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        logits = scores.clone()
        made: torch.Tensor = super().__call__(input_ids, scores, **kwargs)
        self._tell(logits, made.clone())
        return made


class _HeardCriteria(StoppingCriteriaList):
    """Criteria whose answers are told."""

    def __init__(self, criteria: StoppingCriteriaList, tell: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        super().__init__(criteria)
        self._tell = tell

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        done = cast("torch.Tensor", super().__call__(input_ids, scores, **kwargs))
        self._tell(input_ids, done)
        return done
