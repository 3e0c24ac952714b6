"""The state that decoding methods work on: the model, the ids so far, and the books on every row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.ambient import standing_in
from unspool.bundle import Siblings
from unspool.control.timeline import Timeline
from unspool.endings import Endings
from unspool.processing import run_processors
from unspool.readied import Readied
from unspool.records import Beams, Finish, Result, Step
from unspool.rowwise import RowRandom

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

    from unspool.families.carry import Carry
    from unspool.plan import Constraints, ModelInputs, Plan

__all__ = ["DecodingState"]


class DecodingState(Readied):
    """What a decoding method is given: verbs on the model, and the sequences so far.

    Attributes:
        plan: What was asked for.
        steps: Steps made so far.
        forwards: Forwards made so far.
        drafted: Tokens that drafts have proposed so far.
        accepted: Those of them that were taken.
        width: How many positions the latest forward covered.
        outputs: The model's output of the latest `forward()`, until its step is made.
        context: The last hidden states of the prompt, `(rows, length, size)`, for methods that read them.
        settle: A method's own way of saying what the run has come to; set by methods that return other rows than
            those they run.
        built: The processors as the constraints stage built them; methods may run others.
    """

    def __init__(self, plan: Plan, inputs: ModelInputs, constraints: Constraints, carry: Carry) -> None:
        self.plan = plan
        self.config = inputs.config
        self.ids = inputs.input_ids
        self.prompt_length = inputs.input_ids.shape[1]
        self.rows_per_prompt = plan.rows_per_prompt if plan.expanded else 1
        self.steps = 0
        self.forwards = 0
        self.drafted = 0
        self.accepted = 0
        self.carry: Carry | None = carry
        self.endings = Endings(constraints.criteria, plan.request.tokenizer)
        self.built = self.processors = constraints.processors
        self.generator: Any = constraints.generator
        self.inputs: ModelInputs | None = inputs
        self.pad = constraints.pad_token
        self._offset = inputs.offset
        self._settings = bridge.decode_settings(plan.model)
        self._ready: ModelOutput | None = None
        self.outputs: ModelOutput | None = None
        self.context: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None
        self._scores: torch.Tensor | None = None
        self.width = 0
        self._origin = 0
        self.history = () if constraints.keeps_scores else None
        self.settle: Callable[[Finish], Result] | None = None
        self.timeline = Timeline(plan.request.snapshot_every)
        self.siblings: Siblings | None = None
        users = (*plan.processors, *plan.criteria)
        self._followers = [user.reorder for user in users if callable(getattr(user, "reorder", None))]
        self.open_books()

    @property
    def length(self) -> int:
        """How many positions the rows have come to, prompt included, and what only the cache holds of it."""
        return self.ids.shape[1] + self._offset

    # ------------------------------------------------------------------------------------ verbs of methods

    def forward(self) -> torch.Tensor:
        """The model's raw logits for the next position: float32 `(rows, vocab)`, a tensor of its own.

        The first call gives those of the prompt, which the prefill stage has read already.
        """
        outputs = self._ready
        if outputs is None:
            inputs = self.next_inputs()
            outputs = None if self.siblings is None else self.siblings.forward(self, inputs)
            if outputs is None:
                outputs = self.run(inputs, decoding=True)
        self._ready = None
        family, carry = self.plan.family, self.carried
        family.absorb(self.plan.model, carry, outputs)
        logits = family.logits(self.plan.model, outputs).to(copy=True, dtype=torch.float32, device=self.ids.device)
        self.outputs, self._logits, self._scores, self._origin = outputs, logits, logits, self.forwards - 1
        return logits

    def score(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits after the processors: float32 `(rows, vocab)`. The raw ones stay as they are.

        Raises:
            CriterionError: A processor returned something that is not a score for every row and token.
        """
        self._scores = self.process(self.ids, logits)
        return self._scores

    def process(self, ids: torch.Tensor, logits: torch.Tensor, **context: Any) -> torch.Tensor:
        """The logits after the processors, for ids that need not be the state's own.

        Args:
            ids: int64 `(any, length)`.
            logits: float32 `(any, vocab)`. They stay as they are.
            **context: What a processor may take besides, if it has a parameter of that name.
        """
        if not self.processors:
            return logits
        kept = self.carried.kept
        with kept.in_place() if kept else contextlib.nullcontext():  # guidance runs the model, too
            scores = run_processors(self.processors, ids, logits.clone(), context)
        return scores.clone() if self.plan.processors else scores  # the caller's may go on writing to theirs

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        """One token a row, drawn from the softmax of `scores`: int64 `(rows,)`.

        All rows are drawn for, ended ones too, in one call, as transformers does: the same seed gives the same text.
        """
        probabilities = torch.softmax(scores, dim=-1)
        if isinstance(self.generator, RowRandom):
            return self.generator.draw(probabilities)
        return torch.multinomial(probabilities, num_samples=1, generator=self.generator).squeeze(1)

    def append(self, tokens: torch.Tensor, *, drafted: bool = False) -> Step:
        """Adds one token to every live row and settles which rows end: the step to yield.

        Args:
            tokens: int64 `(rows,)`. What it holds for ended rows is replaced by the pad id.
            drafted: Whether the token was proposed by a draft.
        """
        if (fill := self.fill()) is not None:
            tokens = torch.where(self.live, tokens, fill)
        mask = None
        if self.forced:
            tokens, mask, self.forced = self.forced.put(tokens, self.live)
        length = self.length
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=-1)
        self.history = self.longer_history(self._scores)
        was_live = self.live
        self.live, ended = self.endings.ask(self.ids, self.history, was_live)
        if ended:
            self.note(ended)
        return self._step(length, tokens, live=was_live, ended=ended, drafted=drafted, forced=mask)

    def show(self, scores: torch.Tensor) -> None:
        """Sets the scores that the next step will show, where they are not those that `score` gave."""
        self._scores = scores

    def present(
        self, outputs: ModelOutput, logits: torch.Tensor, scores: torch.Tensor, width: int, forward: int | None = None
    ) -> None:
        """Sets what the next step will show, for methods that get several positions from one forward.

        Args:
            outputs: The model's output for the positions that the step covers.
            logits: float32 `(rows, vocab)`: raw.
            scores: float32 `(rows, vocab)`: processed.
            width: How many positions the outputs cover.
            forward: Which forward they came from; by default the latest.
        """
        self.outputs, self._logits, self._scores, self.width = outputs, logits, scores, width
        self._origin = self.forwards - 1 if forward is None else forward

    def randomness(self) -> AbstractContextManager[None]:
        """Makes torch's global source of randomness the run's own, for code that knows no other."""
        return standing_in(self.generator) if isinstance(self.generator, torch.Generator) else contextlib.nullcontext()

    def ask(self, ids: torch.Tensor) -> tuple[torch.Tensor, dict[int, Finish]]:
        """Which of some candidate rows would go on, and how the others would end.

        Args:
            ids: int64 `(candidates, length)`, each with its newest token.

        Returns:
            bool `(candidates,)`, and a `Finish` for each candidate that would end.
        """
        self.history = self.longer_history(self._scores)
        everyone = torch.ones(ids.shape[0], dtype=torch.bool, device=ids.device)
        return self.endings.ask(ids, self.history, everyone)

    def advance(self, beams: Beams, *, ended: dict[int, Finish], running: bool, **more: Any) -> Step:
        """Makes the rows those of some beams, each its parent's with one token more: the step to yield.

        Args:
            beams: The beams after this step.
            ended: How the sequences that will be returned ended, once the search is over.
            running: Whether the search goes on.
            **more: `across`: whether a beam may have a parent of another prompt. `forced`: bool `(rows,)`, the beams
                whose token was given.
        """
        across = more.pop("across", False)
        length = self.length
        self.ids = beams.ids.flatten(0, 1)
        self.running = running
        if running or self.plan.returns_cache:
            self._reorder(beams.parents, 0 if across else self.prompt_length + self._offset)
        return self._step(length, beams.tokens, live=~beams.idle_rows(), ended=ended, beams=beams, **more)

    def _reorder(self, parents: torch.Tensor, shared: int) -> None:
        stay = torch.arange(parents.shape[0], device=parents.device)
        if not torch.equal(parents, stay):
            self.plan.family.reorder(self.plan.model, self.carried, parents, shared)
            for follow in self._followers:
                follow(parents)

    def _step(self, length: int, tokens: torch.Tensor, *, ended: dict[int, Finish], **books: Any) -> Step:
        step = self.plan.family.record(
            self.plan.model,
            self,
            index=self.steps,
            forward=self._origin,
            tokens=tokens,
            logits=self._logits,
            scores=self._scores,
            outputs=outputs_of.strip(self.outputs, self.plan.unasked),
            positions=range(length - self.width, length),
            rows_per_prompt=self.rows_per_prompt,
            ended={**self.stopped, **ended},
            **books,
        )
        self.steps += 1
        self.stopped = {}
        self.outputs = self._logits = self._scores = None
        self.timeline.mark(self)
        return step

    # ------------------------------------------------------------------------------------ verbs of stages

    def run(self, inputs: dict[str, Any], *, decoding: bool = False) -> ModelOutput:
        """One forward of the model, with what it keeps on itself swapped in.

        Args:
            inputs: The model's keywords.
            decoding: Whether this is a step, for which the compiled forward and the decoding settings are meant.
        """
        carry = self.carried
        self.width = outputs_of.width(inputs, self.plan.family.prefix)
        call = carry.call if decoding else self.plan.model
        interventions = self.plan.request.interventions
        if interventions.held:
            call = interventions.within(call, self.steps)
        if carry.kept or (decoding and self._settings is not None):
            with carry.kept.in_place(), self._settings() if decoding and self._settings else contextlib.nullcontext():
                outputs = call(**inputs, return_dict=True)
        else:
            outputs = call(**inputs, return_dict=True)
        self.forwards += 1
        return outputs

    def run_own_prefill(self) -> ModelOutput:
        """The model's own way of reading the prompt, where its class has one."""
        carry = self.carried
        with carry.kept.in_place():
            outputs = bridge.own_prefill(self.plan.model, self.ids, self.config, carry.kwargs)
        self.width = self.ids.shape[1]
        self.forwards += 1
        return outputs

    def hold(self, outputs: ModelOutput) -> None:
        """Keeps the outputs of the prompt for the first `forward()`; of a prompt in chunks, those of the last."""
        self._ready = outputs
        if self.plan.method.hidden_states == "all":
            last: torch.Tensor = outputs[self.plan.family.prefix + "hidden_states"][-1]
            self.context = last if self.context is None else torch.cat([self.context, last], dim=1)

    def expand(self, count: int) -> None:
        """Repeats each row `count` times: ids, carried inputs, cache, and the held outputs of the prompt."""
        self.rows_per_prompt *= count
        if count == 1:
            return
        rows, width = self.ids.shape[0], self.width
        self.ids = self.widen(count)
        if self._ready is not None:
            self._ready = outputs_of.repeat(self._ready, count, rows, width)
        if self.context is not None:
            self.context = self.context.repeat_interleave(count, dim=0)
        self.open_books()

    def widen(self, count: int) -> torch.Tensor:
        """Repeats what is carried along, cache included, `count` times for each row; returns the repeated ids."""
        if self._ready is not None:
            self.plan.family.take_cache(self.carried, self._ready)
        return self.plan.family.expand(self.plan.model, self.carried, self.ids, count)

    def result(self, otherwise: Finish) -> Result:
        """What the run has come to so far; rows that are live get `otherwise` as their ending."""
        if self.settle is not None:
            return self.settle(otherwise)
        return self.make_result(sequences=self.ids, finishes=tuple(finish or otherwise for finish in self.finishes))

    def make_result(self, **fields: Any) -> Result:
        """A result with the counts and the cache of this state, and what a method adds."""
        carry = self.carry
        return Result(
            prompt_length=self.prompt_length,
            steps=self.steps,
            forwards=self.forwards,
            drafted=self.drafted,
            accepted=self.accepted,
            cache=carry.cache if carry is not None and self.plan.returns_cache else None,
            **fields,
        )

    def release(self) -> None:
        """Lets go of the cache and of everything else that is large."""
        self.settle = None
        self.memory, self.timeline = {}, Timeline()
        if self.carry is not None:
            self.carry.kept.leave_with(self.carry.cache if self.plan.returns_cache else None)
            self.carry.empty()  # an error's traceback may hold on to it
        self.carry = self.inputs = self._ready = self.outputs = self._logits = self._scores = self.history = None

    def next_inputs(self) -> dict[str, Any]:
        """What the next forward takes."""
        return self.plan.family.step_inputs(self.plan.model, self.carried, self.ids)

    @property
    def carried(self) -> Carry:
        """What the run carries from a forward to the next."""
        if self.carry is None:
            raise RuntimeError("The run is over; its cache has been let go.")
        return self.carry
