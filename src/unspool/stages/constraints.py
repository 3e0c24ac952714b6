"""Stage 3: builds what shapes and ends the output."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from unspool import afresh, bridge
from unspool.ambient import without_gradients
from unspool.endings import reads_scores
from unspool.plan import Constraints, ModelInputs, Plan

__all__ = ["constraints"]


@without_gradients
def constraints(plan: Plan, inputs: ModelInputs) -> Generator[Any, Any, Constraints]:
    """Builds the logits processors and stopping criteria, ours and the caller's, in transformers' order.

    Yields nothing.
    """
    request, config = plan.request, inputs.config
    afresh.begin(plan.processors)
    processors = bridge.logits_processors(
        plan.model,
        config,
        prompt_length=inputs.input_ids.shape[1],
        encoder_input_ids=inputs.tensor,
        prefix_allowed_tokens_fn=request.prefix_allowed_tokens_fn,
        custom=plan.processors,
        kwargs=_per_row(plan, inputs),
        negative_prompt_ids=request.negative_prompt_ids,
        negative_prompt_attention_mask=request.negative_prompt_attention_mask,
    )
    criteria = bridge.stopping_criteria(plan.model, config, plan.criteria, request.tokenizer)
    wants_scores = bool(config.return_dict_in_generate and config.output_scores)
    return Constraints(
        processors=processors,
        criteria=criteria,
        pad_token=_pad(inputs),
        generator=_generator(plan, inputs.input_ids.device),
        keeps_scores=wants_scores and any(reads_scores(criterion) for criterion in criteria),
    )
    yield


def _per_row(plan: Plan, inputs: ModelInputs) -> dict[str, Any]:
    """The model's keywords with the decoder's mask as it will be once rows are expanded."""
    name = plan.family.prefix + "attention_mask"
    mask = inputs.kwargs.get(name)
    return inputs.kwargs if mask is None else {**inputs.kwargs, name: mask.repeat_interleave(plan.rows_per_prompt, 0)}


def _pad(inputs: ModelInputs) -> torch.Tensor | None:
    pad, eos = (bridge.special_tokens(inputs.config, kind) for kind in ("pad", "eos"))
    chosen = pad if pad is not None else eos[0] if eos is not None else None
    return None if chosen is None else chosen.to(inputs.input_ids.device)


def _generator(plan: Plan, device: torch.device) -> torch.Generator | None:
    seed = plan.request.seed
    return plan.request.generator if seed is None else torch.Generator(device).manual_seed(seed)
