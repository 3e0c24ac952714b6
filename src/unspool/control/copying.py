"""Copies of a run's state, cache included."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import afresh, bridge
from unspool import cache as caches
from unspool import outputs as outputs_of
from unspool.control.timeline import Snapshot, Timeline, random_state, set_random_state, source_of
from unspool.endings import Endings

if TYPE_CHECKING:
    from unspool.families.carry import Carry
    from unspool.state import DecodingState

__all__ = ["branch", "copied", "restore", "snapshot", "snapshot_if_due"]


def copied(state: DecodingState, *, shared: bool = False) -> DecodingState:
    """A copy of a state: what either does from here on, the other doesn't see.

    The caller's processors and criteria are in both, and so is the source of randomness.

    Args:
        state: The state.
        shared: Whether the past of the cache is shared until one of the two writes to it, where that can be done.
    """
    other = copy.copy(state)
    other.carry = _carry(state.carried, shared)
    other.give_ready(outputs_of.with_state(state.ready(), other.carry.kwargs))
    other.built = _processors(state)
    other.processors = other.built
    other.timeline = Timeline(state.timeline.every)
    other.settle = other.siblings = None
    other.memory = {}
    for name, kept in state.memory.items():
        made = kept.copied(other) if hasattr(kept, "copied") else None
        if made is not None:
            other.memory[name] = made
    return other


def snapshot(state: DecodingState, *, commanded: bool = False) -> Snapshot:
    """The state as it is now."""
    users = (*state.plan.processors, *state.plan.criteria)
    return Snapshot(copied(state), random_state(state), afresh.keep(users), commanded)


def branch(state: DecodingState, seed: int | None) -> DecodingState:
    """A state that goes on from here by itself: with its own randomness, processors and criteria.

    Args:
        state: The state.
        seed: The seed of its source of randomness; None to go on with the randomness that the state would.
    """
    other = copied(state, shared=True)
    plan = state.plan
    made = {id(each): _twin(each) for each in (*plan.processors, *plan.criteria)}
    other.plan = replace(
        plan,
        request=replace(plan.request, interventions=plan.request.interventions.copied()),
        processors=LogitsProcessorList(made[id(each)] for each in plan.processors),
        criteria=StoppingCriteriaList(made[id(each)] for each in plan.criteria),
    )
    other.built = other.processors = LogitsProcessorList(made.get(id(each), each) for each in other.built)
    if plan.criteria:
        criteria = StoppingCriteriaList(made.get(id(each), each) for each in state.endings.criteria)
        other.endings = Endings(criteria, plan.request.tokenizer)
    if state.config.do_sample:
        other.generator = source_of(random_state(state), state.ids.device)
        if seed is not None:
            other.generator = torch.Generator(state.ids.device).manual_seed(seed)
    return other


def _twin(thing: Any) -> Any:
    """One more of a processor or criterion, which remembers what it does and shares what is no memory."""
    if not getattr(thing, "__dict__", None):
        return thing
    other = copy.copy(thing)
    afresh.put([(other, kept) for _, kept in afresh.keep([thing])])
    return other


def snapshot_if_due(state: DecodingState) -> None:
    """Takes a snapshot if it is time for one."""
    every, taken = state.timeline.every, state.timeline.snapshots
    rounds = state.memory.get("rounds")
    if not every or not state.running or (rounds is not None and rounds.waiting):
        return
    if any(it.state.steps == state.steps for it in taken):
        return
    if state.steps % every == 0 or not taken:
        taken.append(snapshot(state))


def restore(state: DecodingState, taken: Snapshot) -> None:
    """Makes a state what it was when a snapshot was taken."""
    timeline, generator, turn, siblings = state.timeline, state.generator, state.turn, state.siblings
    fresh = copied(taken.state)
    vars(state).update(vars(fresh))
    state.timeline, state.generator, state.turn, state.siblings = timeline, generator, turn + 1, siblings
    state.memory = {name: kept.copied(state) for name, kept in fresh.memory.items()}
    set_random_state(state, taken.random)
    afresh.put(taken.users)


def _carry(carry: Carry, shared: bool) -> Carry:
    found = carry.state()
    kwargs, fixed = dict(carry.kwargs), None if carry.fixed is None else dict(carry.fixed)
    if found is not None:
        name, held = found
        kwargs[name] = caches.shared(held) if shared else caches.copied(held, 0)
        if fixed is not None and name in fixed:
            fixed[name] = kwargs[name]
    return replace(carry, kwargs=kwargs, fixed=fixed, kept=carry.kept.copied())


def _processors(state: DecodingState) -> LogitsProcessorList:
    """The processors as built, with a copy of those of transformers that remember something."""
    memo: dict[int, Any] = {id(thing): thing for thing in (state.plan.model, state.plan.request.tokenizer)}
    with torch.no_grad():
        return LogitsProcessorList(
            copy.deepcopy(each, dict(memo)) if isinstance(each, bridge.REMEMBERING) else each for each in state.built
        )
