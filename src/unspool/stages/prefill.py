"""Stage 4: reads the prompt, one row per prompt, and only then expands the rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import torch

from unspool import bridge
from unspool import cache as caches
from unspool.ambient import without_gradients
from unspool.errors import CacheError, UnsupportedError
from unspool.families.carry import Carry
from unspool.plan import Constraints, ModelInputs, Plan
from unspool.records import PrefillProgress
from unspool.state import DecodingState

__all__ = ["begin_state", "prefill", "read"]

_ALONG_POSITIONS = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


@without_gradients
def prefill(
    plan: Plan, inputs: ModelInputs, constraints: Constraints
) -> Generator[PrefillProgress, Any, DecodingState]:
    """Reads the prompt, in chunks of `prefill_chunk_size` if that is set, and expands rows to samples.

    The outputs for the prompt's last position are held in the state for the first decoding step, so that a run
    makes exactly one forward a step, and one more for each further chunk.

    Yields:
        Progress before the first forward and after each.
    """
    state = begin_state(plan, inputs, constraints)
    carry = state.carried
    if not plan.expanded and not plan.family.can_expand_later(plan.model, carry, inputs.input_ids.shape[0]):
        state.expand(plan.rows_per_prompt)
    total = inputs.input_ids.shape[1] + inputs.offset
    done = inputs.reused
    yield PrefillProgress(done, total, inputs.reused)
    if plan.method.reads_prompt:
        return state
    if state.rows_per_prompt != plan.rows_per_prompt:
        carry.kwargs = plan.family.guarded(carry.kwargs)
    for outputs, width in read(plan, inputs, state):
        state.hold(outputs)
        del outputs
        done = min(total, done + width)
        yield PrefillProgress(done, total, inputs.reused)
    if state.rows_per_prompt != plan.rows_per_prompt:
        state.expand(plan.rows_per_prompt)
    carry.direct = plan.family.takes_direct_path(plan.model, carry)
    return state


def begin_state(plan: Plan, inputs: ModelInputs, constraints: Constraints) -> DecodingState:
    """The state before anything has been read, one row per prompt."""
    call, uncompiled = bridge.forward_call(plan.model, inputs.config, inputs.kwargs)
    carry = Carry(
        kwargs={**inputs.kwargs, "output_hidden_states": True} if plan.method.hidden_states else inputs.kwargs,
        kept=inputs.kept,
        call=call,
        uncompiled=uncompiled,
    )
    return DecodingState(plan, inputs, constraints, carry)


def read(plan: Plan, inputs: ModelInputs, state: DecodingState) -> Iterator[tuple[Any, int]]:
    """The outputs of each forward over the prompt, and the positions it covered."""
    if bridge.overrides(plan.model, "_prefill"):
        yield state.run_own_prefill(), inputs.only_last or state.ids.shape[1] + inputs.offset
    elif inputs.config.prefill_chunk_size is not None:
        yield from _in_chunks(plan, inputs, state, inputs.config.prefill_chunk_size)
    else:
        yield state.run(_prompt_inputs(plan, inputs, state)), inputs.only_last or state.ids.shape[1] + inputs.offset


def _prompt_inputs(plan: Plan, inputs: ModelInputs, state: DecodingState) -> dict[str, Any]:
    return plan.family.inputs(
        plan.model, state.carried, state.ids, next_sequence_length=inputs.only_last, is_first_iteration=True
    )


def _in_chunks(plan: Plan, inputs: ModelInputs, state: DecodingState, size: int) -> Iterator[tuple[Any, int]]:
    carry, name = state.carried, bridge.cache_name(plan.model)
    if carry.kwargs.get(name) is None or caches.is_recurrent(carry.kwargs[name]):
        raise CacheError(
            f"prefill_chunk_size needs a cache that counts positions, to put the chunks in, and here is none "
            f"({type(plan.model).__name__}). Leave it out, or leave out use_cache=False."
        )
    raw = [key for key in bridge.PREFILL_ONLY if key != "mm_encoder_outputs" and carry.kwargs.get(key) is not None]
    ids = state.ids[:, -(inputs.only_last or 0) :]
    chunks = torch.split(ids, size, dim=-1)
    if raw and len(chunks) > 1:
        raise UnsupportedError(f"prefill_chunk_size can't split {', '.join(raw)}; leave it out for this input.")
    media = bridge.media_chunks(plan.model, carry.kwargs.pop("mm_encoder_outputs", None), ids, size)
    whole, start = dict(carry.kwargs), inputs.reused
    for chunk, encoded in zip(chunks, media, strict=True):
        stop = start + chunk.shape[1]
        carry.kwargs = {**carry.kwargs, **_up_to(whole, start, stop)}
        made = plan.family.inputs(plan.model, carry, chunk, is_first_iteration=True)
        if encoded:
            made["mm_encoder_outputs"] = encoded
        outputs = state.run(made, decoding=True)  # chunks are compiled, as steps are
        if outputs.get(name) is None:
            raise CacheError(f"{type(plan.model).__name__} returns no cache; leave out prefill_chunk_size.")
        carry.kwargs[name] = outputs[name]
        start = stop
        yield outputs, chunk.shape[1]
    carry.kwargs = {**carry.kwargs, **{key: whole[key] for key in _up_to(whole, 0, 0)}}


def _up_to(kwargs: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """What goes along with the positions from `start` to `stop` of the prompt."""
    part: dict[str, Any] = {}
    if kwargs.get("attention_mask") is not None:
        part["attention_mask"] = kwargs["attention_mask"][:, :stop]
    if kwargs.get("position_ids") is not None:
        part["position_ids"] = kwargs["position_ids"][..., start:stop]
    for name in _ALONG_POSITIONS:
        if kwargs.get(name) is not None:
            part[name] = kwargs[name][..., :stop]
    return part
