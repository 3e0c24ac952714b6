"""The five stages, in a row."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unspool import afresh, stages
from unspool.control.copying import snapshot_if_due
from unspool.control.pilot import Pilot
from unspool.control.updating import settle_rows
from unspool.errors import ArgumentError, StreamError, UnsupportedError
from unspool.events import PAUSE, Change
from unspool.own_loop import run_own_loop
from unspool.plan import Constraints, ModelInputs, Plan, Request, open_run
from unspool.records import Event, Finish, Opening, Result
from unspool.state import DecodingState

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["Pipeline", "Run"]

T = TypeVar("T")


class Loop(Protocol):
    """A loop of a model's own, as far as the run of it goes."""

    def result(self, otherwise: Finish) -> Result:
        """What it has come to so far; rows that are live get `otherwise` as their ending."""

    def release(self) -> None:
        """Lets go of all that is large."""


Stage = Generator[Event, Any, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The stages of a run, each of which can be replaced by another with the same arguments and result.

    A stage is a generator function: it yields events while it works and returns the record the next one needs.

    Attributes:
        configure: `(Request) -> Plan`. Runs to its end at the call.
        inputs: `(Plan) -> ModelInputs`.
        constraints: `(Plan, ModelInputs) -> Constraints`.
        prefill: `(Plan, ModelInputs, Constraints) -> DecodingState`.
        decode: `(Plan, DecodingState) -> Result`.

    Example:
        >>> from unspool import afresh, stages
        >>> def with_note(plan, inputs):
        ...     made = yield from stages.constraints(plan, inputs)
        ...     print(len(made.criteria), "criteria")
        ...     return made
        >>> pipeline = Pipeline().replace(constraints=with_note)
        >>> pipeline.prefill is stages.prefill
        True
    """

    configure: Callable[[Request], Stage[Plan]] = stages.configure
    inputs: Callable[[Plan], Stage[ModelInputs]] = stages.inputs
    constraints: Callable[[Plan, ModelInputs], Stage[Constraints]] = stages.constraints
    prefill: Callable[[Plan, ModelInputs, Constraints], Stage[DecodingState]] = stages.prefill
    decode: Callable[[Plan, DecodingState], Stage[Result]] = stages.decode

    def replace(self, **stages: Any) -> Pipeline:
        """A pipeline with some stages replaced and the others as they are."""
        return replace(self, **stages)

    def start(self, request: Request) -> Run:
        """Configures a run; wrong arguments raise here. Nothing else happens until its events are asked for."""
        return Run(self, request)


class Run:
    """One run of a pipeline, and the records its stages have made so far.

    Attributes:
        plan: What will be done.
        made: What the model will read; None before stage 2 is over.
        constraints: What shapes and ends the output; None before stage 3 is over.
        state: The decoding state; None before stage 4 is over.
        result: What the run came to; None before it is over.
        first_opening: What sinks have been told; None before stage 2 is over.
        branched: Whether it goes on from a state that another run came to.
        pausing: Whether it pauses, with `PAUSE`, once the prompt has been read and before the first step.
        began: When it began, in seconds of `time.perf_counter()`.
    """

    def __init__(self, pipeline: Pipeline, request: Request) -> None:
        self._pipeline = pipeline
        self._early, self.plan = _exhaust(_named("configure", pipeline.configure(request)))
        self._begin()

    def _begin(self) -> None:
        self.pausing = self.branched = False
        self.made: ModelInputs | None = None
        self.constraints: Constraints | None = None
        self.state: DecodingState | Loop | None = None
        self.result: Result | None = None
        self.first_opening: Opening | None = None
        self.began = 0.0

    @property
    def config(self) -> GenerationConfig:
        """The generation config."""
        return self.plan.config

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that the call was given, if any."""
        return self.plan.request.tokenizer

    @property
    def home(self) -> PreTrainedModel:
        """What has a thread of its own, on which asynchronous streams are stepped: the model."""
        return self.plan.model

    def events(self) -> Generator[Event, Any, Result]:
        """Runs the remaining four stages, yielding what they yield."""
        stage, plan = self._pipeline, self.plan
        self.began = time.perf_counter()
        yield from self._early
        if self.branched:
            if self.pausing:
                yield PAUSE
            assert isinstance(self.state, DecodingState)  # a branch begins with it
            self.result = yield from _named("decode", stage.decode(plan, self.state))
            return self.result
        if plan.own_loop:
            self.result = yield from _named("own loop", run_own_loop(plan, self))
            return self.result
        self.made = yield from _named("inputs", stage.inputs(plan))
        self.constraints = yield from _named("constraints", stage.constraints(plan, self.made))
        self.state = yield from _named("prefill", stage.prefill(plan, self.made, self.constraints))
        yield from self._settle_rows()
        if self.pausing:
            yield PAUSE
        self.result = yield from _named("decode", stage.decode(plan, self.state))
        return self.result

    def _settle_rows(self) -> Generator[Event, Any, None]:
        """Takes up settings that differ from row to row, and tells of them."""
        given = self.plan.request.per_row
        if not given:
            return
        if not isinstance(self.state, DecodingState) or self.plan.method.searches is not None:
            raise ArgumentError(f"{', '.join(given)}: beams have the same settings; give one value.")
        for row, config in settle_rows(self.state, given):
            yield Change(config, (row,))

    def opening(self) -> Opening | None:
        """What sinks are told before the first event; None until the inputs are settled."""
        made, plan = self.made, self.plan
        if made is None or self.first_opening is not None:
            return self.first_opening
        self.first_opening = open_run(plan, made, self.began)
        return self.first_opening

    def partial(self, otherwise: Finish) -> Result | None:
        """What the run has come to so far, with `otherwise` as the ending of live rows; None before stage 2 is over."""
        if self.result is not None:
            return self.result
        if self.state is not None:
            return self.state.result(otherwise)
        opening = self.opening()
        if opening is None:
            return None
        ids = opening.prompt_ids
        return Result(ids, ids.shape[1], (otherwise,) * ids.shape[0], steps=0, forwards=0)

    def branch(self, state: DecodingState) -> Run:
        """A run that goes on from a copy of this one's state."""
        other = copy.copy(self)
        opening = self.opening()
        assert opening is not None  # there is a state
        other._take_up(state, opening)
        return other

    @classmethod
    def resumed(cls, state: DecodingState, inputs: ModelInputs) -> Run:
        """A run that goes on from a state that was made in another way.

        Args:
            state: The state, after some step.
            inputs: What it began with.
        """
        run = cls.__new__(cls)
        run._pipeline, run.plan, run.began = Pipeline(), state.plan, time.perf_counter()
        run._begin()
        run._take_up(state, open_run(state.plan, inputs, time.perf_counter()))
        return run

    def _take_up(self, state: DecodingState, opening: Opening) -> None:
        new = state.ids[:, state.prompt_length :].tolist()
        earlier = tuple(None if end is not None else tuple(ids) for end, ids in zip(state.finishes, new, strict=True))
        self.plan, self.state, self.result, self.branched = state.plan, state, None, True
        self.first_opening = replace(opening, earlier=earlier)
        self._early = []

    def pilot(self) -> Pilot:
        """What carries out commands, between two steps.

        Raises:
            UnsupportedError: The model's class has a loop of its own, which can't be steered.
        """
        if self.plan.own_loop or not isinstance(self.state, DecodingState):
            raise UnsupportedError(
                f"{type(self.plan.model).__name__} generates with a loop of its own, which takes no commands; its "
                f"stream can be left at any step with close()."
            )
        if self.state.carry is None:
            raise StreamError("The stream is over; it takes no commands any more.")
        self.state.timeline.begin(self.state)
        snapshot_if_due(self.state)
        return Pilot(self.state)

    def interrupt(self) -> None:
        """Does nothing: a forward under way is not broken off."""

    def release(self) -> None:
        """Lets go of all that is large; the result stays."""
        afresh.end(self.plan.processors)
        if self.state is not None:
            self.state.release()
        if self.first_opening is not None:
            self.first_opening = replace(self.first_opening, encoder_outputs=None)
        self.made = self.constraints = None


def _named(name: str, stage: Stage[T]) -> Stage[T]:
    """A stage whose errors say where they came from."""
    try:
        return (yield from stage)
    except Exception as error:
        error.add_note(f"unspool: raised in the {name!r} stage")
        raise


def _exhaust(stage: Stage[T]) -> tuple[list[Event], T]:
    events: list[Event] = []
    while True:
        try:
            events.append(next(stage))
        except StopIteration as end:
            return events, end.value
