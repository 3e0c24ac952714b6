"""Stage 3: builds what shapes and ends the output."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from unspool import afresh, bridge
from unspool.ambient import without_gradients
from unspool.endings import reads_scores
from unspool.plan import Constraints, ModelInputs, Plan

if TYPE_CHECKING:
    from transformers import GenerationConfig, StoppingCriteriaList

__all__ = ["constraints", "keeps_scores", "pad_token", "random_source"]


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
    return Constraints(
        processors=processors,
        criteria=criteria,
        pad_token=pad_token(inputs),
        generator=random_source(plan, inputs.input_ids.device),
        keeps_scores=keeps_scores(config, criteria),
    )
    yield


def _per_row(plan: Plan, inputs: ModelInputs) -> dict[str, Any]:
    """The model's keywords with the decoder's mask as it will be once rows are expanded."""
    name = plan.family.prefix + "attention_mask"
    mask = inputs.kwargs.get(name)
    return inputs.kwargs if mask is None else {**inputs.kwargs, name: mask.repeat_interleave(plan.rows_per_prompt, 0)}


def pad_token(inputs: ModelInputs) -> torch.Tensor | None:
    """The id that ended rows hold: the pad id, or else the first end-of-sequence id."""
    pad, eos = (bridge.special_tokens(inputs.config, kind) for kind in ("pad", "eos"))
    chosen = pad if pad is not None else eos[0] if eos is not None else None
    return None if chosen is None else chosen.to(inputs.input_ids.device)


def keeps_scores(config: GenerationConfig, criteria: StoppingCriteriaList) -> bool:
    """Whether a criterion is to be shown the scores so far, as transformers does when they are asked for."""
    asked = bool(config.return_dict_in_generate and config.output_scores)
    return asked and any(reads_scores(criterion) for criterion in criteria)


def random_source(plan: Plan, device: torch.device) -> torch.Generator | None:
    """The run's own source of randomness, if it was given a seed or a generator."""
    seed = plan.request.seed
    return plan.request.generator if seed is None else torch.Generator(device).manual_seed(seed)
