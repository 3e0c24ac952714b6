"""Models whose class wraps the common generation loop in one of its own.

Such a class prepares something (reads an image, cuts sound into windows), calls the common loop, once or many
times, and makes something of what comes back. Its `generate` is run as it is, with our loop in place of the
common one by way of transformers' `custom_generate`; while that loop runs, `generate` is suspended at each step
in a coroutine on the same thread, so that it, too, is pulled one step at a time.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from greenlet import getcurrent, greenlet
from transformers import LogitsProcessorList, StoppingCriteriaList, StopStringCriteria

from unspool import bridge, stages
from unspool.ambient import standing_in, without_gradients
from unspool.errors import UnsupportedError
from unspool.events import Phase
from unspool.families.alone import AloneLoop
from unspool.families.parts import first_phase, handed_parts
from unspool.families.registry import particular_family, template_of
from unspool.plan import Plan, open_run
from unspool.prepared import Prepared, prepare
from unspool.records import Event, Finish, FinishReason, Opening, Result
from unspool.sinks.collect import CollectSink
from unspool.stages.constraints import random_source
from unspool.state import DecodingState
from unspool.watched import WatchedLoop

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from unspool.pipeline import Run

__all__ = ["can_suspend", "run_own_loop"]


def can_suspend(model: PreTrainedModel) -> bool:
    """Whether the class's own `generate` or sampling loop can be suspended, as far as its source tells."""
    if bridge.has_own_sample(model) or bridge.calls_sample(model):
        return True
    owner = next(kind for kind in type(model).__mro__ if "generate" in vars(kind))
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(owner))) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "generate" for call in calls)


@without_gradients
def run_own_loop(plan: Plan, run: Run) -> Generator[Event, Any, Result]:
    """Runs the model's own `generate`, suspended at every event of the loops inside it.

    Raises:
        UnsupportedError: It came to its end without calling the common loop.
    """
    body = _Body(plan, run)
    worker = greenlet(body)
    try:
        with body.randomness():
            made = worker.switch()
        while not worker.dead:
            yield made
            worker.parent = getcurrent()
            with body.randomness():
                made = worker.switch()
    finally:
        if not worker.dead:
            worker.parent = getcurrent()
            worker.throw()
    if body.state is None:
        raise UnsupportedError(
            f"{type(plan.request.model).__name__}.generate() doesn't use the common loop; it can't be streamed."
        )
    sequences = made.get("sequences") if isinstance(made, dict) else made
    last = body.result(Finish(FinishReason.STOPPED))
    if isinstance(sequences, torch.Tensor) and not sequences.is_floating_point():
        last = replace(last, sequences=sequences)
    return replace(last, output=made)


class _Body:
    """What runs in the coroutine: the model's `generate`, and our loop inside it."""

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan, self.run = plan, run
        self.state: DecodingState | WatchedLoop | AloneLoop | None = None
        self._part: PreTrainedModel | None = None
        self._host: PreTrainedModel | None = None
        self._stands_for: PreTrainedModel = plan.request.model
        self._phases = 0
        self._generator = random_source(plan, plan.model.device)
        self._family = particular_family(plan.request.model) or template_of(plan.request.model)
        self._listener = self._family.listener(plan.request)
        self._alone = self._family.loop(plan.request)

    def __call__(self) -> Any:
        request = self.plan.request
        given = {
            "generation_config": request.generation_config,
            "logits_processor": self.plan.processors or None,
            "stopping_criteria": StoppingCriteriaList([*self.plan.criteria, *self._stop_strings()]) or None,
            "prefix_allowed_tokens_fn": request.prefix_allowed_tokens_fn,
            "assistant_model": request.assistant_model,
            "negative_prompt_ids": request.negative_prompt_ids,
            "negative_prompt_attention_mask": request.negative_prompt_attention_mask,
        }
        kwargs = dict(request.kwargs)
        if self.plan.config.stop_strings is not None:  # the criterion above stands for them
            kwargs.pop("stop_strings", None)
            given["generation_config"] = _without_stop_strings(request.generation_config)
        named = {name: value for name, value in given.items() if value is not None}
        if request.inputs is not None:
            named[_first_parameter(request.model)] = request.inputs
        model = request.model
        if self._alone is not None:
            alone = self._alone(request, _emit, self._open)
            self.state = self.run.state = alone
            return alone.run({**named, **kwargs})
        if bridge.has_own_sample(model):
            watched = WatchedLoop(model, _emit, self._open)
            self.state = self.run.state = watched
            return watched.stand_in().generate(**named, **kwargs)
        if bridge.calls_sample(model):
            return bridge.stand_in(model, {}, sample=lambda host, ids, **given: self._sample(ids, given)).generate(
                **named, **kwargs
            )
        taps = {name: bridge.heard(model, name, self._hear) for name in self._listener.taps}
        parts = handed_parts(model)
        if parts:
            host = bridge.stand_in(model, {f"{name}.generate": self._in_part(getattr(model, name)) for name in parts})
            return host.generate(**named, **kwargs)
        keeps = self._family.keeps_on_model
        host = self._host = bridge.stand_in(model, taps, apart=keeps) if taps or keeps else model
        return host.generate(**named, **kwargs, custom_generate=self.loop)

    def _in_part(self, part: PreTrainedModel) -> Callable[..., Any]:
        """The `generate` of a part of the model, with our loop in it."""

        def generate(host: Any, *args: Any, **kwargs: Any) -> Any:
            self._host, self._stands_for = host, part
            return type(part).generate(host, *args, **kwargs, custom_generate=self.loop)

        return generate

    def randomness(self) -> AbstractContextManager[None]:
        """What is entered while it runs: the stream's own source of randomness, for loops that know only torch's."""
        apart = self._alone is not None or bridge.has_own_sample(self.plan.request.model)
        return standing_in(self._generator) if apart and self._generator is not None else contextlib.nullcontext()

    def _hear(self, name: str, given: Mapping[str, Any], made: Any) -> None:
        """Tells of a call inside the class's `generate`."""
        listener = self._listener
        for event in listener.before(name, given) if made is bridge.NOT_YET else listener.after(name, given, made):
            _emit(event)

    def _sample(self, input_ids: torch.Tensor, given: dict[str, Any]) -> Any:
        """Our loop, in the place of the one that the class calls by its name."""
        given.pop("streamer", None)
        return self.loop(self.plan.model, input_ids, **given)

    def _begin_phase(self, model: PreTrainedModel) -> None:
        """Tells which part of the model begins, where it is made of several."""
        if model is self._part:
            return
        whole = self.plan.request.model
        name = next((name for name, module in whole.named_modules() if module is model and name), first_phase(whole))
        self._part = model
        if name is not None:
            _emit(Phase(name, self._phases))
            self._phases += 1

    def _open(self, opening: Opening) -> None:
        if self.run.first_opening is None:
            self.run.first_opening = self._listener.opening(opening)

    def loop(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """The decoding loop that transformers calls once it has prepared the inputs."""
        if model is self._host and not self._family.keeps_on_model:
            model = self._stands_for  # and not what stands in for it
        self._begin_phase(model)
        made = prepare(
            self.plan.request,
            model=model,
            input_ids=input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            inputs_tensor=inputs_tensor,
            model_kwargs=model_kwargs,
            generator=self._generator,
        )
        return self._run_stages(made)

    def _run_stages(self, made: Prepared) -> Any:
        opening = open_run(made.plan, made.inputs, self.run.began)
        self._open(opening)
        for event in self._listener.begins(opening):
            _emit(event)
        collect = CollectSink()
        collect.open(opening)
        reading = stages.prefill(made.plan, made.inputs, made.constraints)
        self.state = state = self._hand_on(reading, collect)
        self.run.state = self
        try:
            collect.close(self._hand_on(stages.decode(made.plan, state), collect), None)
        finally:
            state.release()
        return collect.output

    def result(self, otherwise: Finish) -> Result:
        """What the whole run has come to so far."""
        assert self.state is not None  # a loop has begun
        return self._listener.result(self.state.result(otherwise), otherwise)

    def release(self) -> None:
        """Lets go of all that is large."""
        if self.state is not None:
            self.state.release()

    def _hand_on(self, stage: Generator[Event, Any, Any], collect: CollectSink) -> Any:
        """Runs a stage, handing each event to whoever pulls and waiting there to be pulled again."""
        while True:
            try:
                event = next(stage)
            except StopIteration as end:
                return end.value
            collect.take(event)
            event = self._listener.shown(event)
            _emit(event)
            del event

    def _stop_strings(self) -> list[StopStringCriteria]:
        strings = self.plan.config.stop_strings
        return (
            [] if strings is None else [StopStringCriteria(stop_strings=strings, tokenizer=self.plan.request.tokenizer)]
        )


def _emit(event: Event) -> None:
    """Hands an event to whoever pulls, and waits to be pulled again."""
    parent = getcurrent().parent
    assert parent is not None  # only the main greenlet has none, and this never runs there
    parent.switch(event)


def _without_stop_strings(config: GenerationConfig | None) -> GenerationConfig | None:
    if config is None:
        return None
    changed = copy.copy(config)
    changed.stop_strings = None
    return changed


def _first_parameter(model: PreTrainedModel) -> str:
    """What the class's own `generate` calls its main input."""
    names = [name for name in inspect.signature(model.generate).parameters if name not in ("self", "kwargs", "args")]
    return names[0] if names else "inputs"
