"""Runs that begin where transformers' `generate` calls its decoding loop: with everything prepared by it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool import cache as caches
from unspool.decoding.registry import find_method
from unspool.families.registry import particular_family, template_of
from unspool.kept import KeptState
from unspool.plan import Constraints, ModelInputs, Plan, Request
from unspool.stages.constraints import keeps_scores, pad_token, random_source
from unspool.stages.inputs import with_past

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The records of the first three stages, made from what transformers has prepared."""

    plan: Plan
    inputs: ModelInputs
    constraints: Constraints

    def stages(self) -> dict[str, Callable[..., Generator[Any, Any, Any]]]:
        """These records as stages, for `Pipeline.replace`."""
        return {"configure": _given(self.plan), "inputs": _given(self.inputs), "constraints": _given(self.constraints)}


def prepare(
    request: Request,
    *,
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    inputs_tensor: torch.Tensor | None,
    model_kwargs: dict[str, Any],
    generator: torch.Generator | None = None,
) -> Prepared:
    """Takes over from transformers: the arguments are those that it calls a decoding loop with.

    Args:
        request: What the caller asked for, as far as it is known.
        model: The model whose loop it is.
        input_ids: int64 `(rows, length)`, repeated to one row per sample or beam already.
        logits_processor: The processors, all of them.
        stopping_criteria: The criteria, all of them.
        generation_config: The prepared config.
        inputs_tensor: The main input of the model, where it is known.
        model_kwargs: The model's keywords, cache included.
        generator: The source of randomness; made from the request's seed if left out.
    """
    model_kwargs.pop("synced_gpus", None)
    plan = _plan(request, model, generation_config, model_kwargs)
    inputs = _inputs(plan, input_ids, inputs_tensor, model_kwargs)
    constraints = Constraints(
        processors=logits_processor,
        criteria=stopping_criteria,
        pad_token=pad_token(inputs),
        generator=generator or random_source(plan, input_ids.device),
        keeps_scores=keeps_scores(generation_config, stopping_criteria),
    )
    return Prepared(plan, inputs, constraints)


def _plan(request: Request, model: PreTrainedModel, config: GenerationConfig, kwargs: dict[str, Any]) -> Plan:
    return Plan(
        request=replace(request, model=model),
        model=model,
        config=config,
        method=find_method(request.decoding or bridge.mode(config, request.assistant_model)),
        family=particular_family(model) or template_of(model),
        model_kwargs=kwargs,
        processors=LogitsProcessorList(request.logits_processor or ()),
        criteria=StoppingCriteriaList(request.stopping_criteria or ()),
        rows_per_prompt=max(config.num_beams or 1, config.num_return_sequences or 1),
        expanded=True,
        default_max_length=False,
        default_min_length=False,
        returns_cache=bool(config.return_dict_in_generate) or request.kwargs.get(bridge.CACHE) is not None,
    )


def _inputs(plan: Plan, ids: torch.Tensor, tensor: torch.Tensor | None, kwargs: dict[str, Any]) -> ModelInputs:
    cache = kwargs.get(bridge.cache_name(plan.model))
    if cache is not None and not caches.rows(cache):
        caches.grow_in_place(cache, plan.config.max_length)
    if plan.rolls_back:
        bridge.keep_past(cache)
    embeds = None if plan.model.config.is_encoder_decoder else kwargs.get("inputs_embeds")
    made = ModelInputs(
        input_ids=ids,
        tensor=tensor if tensor is not None else ids if embeds is None else embeds,
        name="input_ids" if embeds is None else "inputs_embeds",
        kwargs=kwargs,
        config=plan.config,
        kept=KeptState(plan.model, cache),
        offset=0 if embeds is None else embeds.shape[1] - ids.shape[1],
    )
    return with_past(plan, made)


def _given(record: Any) -> Callable[..., Generator[Any, Any, Any]]:
    def stage(*records: Any) -> Generator[Any, Any, Any]:
        return record
        yield

    return stage
