"""The plan of a run whose loop is the class's own in every part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool.decoding.registry import find_method
from unspool.errors import ArgumentError
from unspool.families.alone import settings
from unspool.plan import Plan, Request

if TYPE_CHECKING:
    from unspool.families.base import Family

__all__ = ["settle_alone"]

_OPTIONS = (
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "assistant_model",
    "negative_prompt_ids",
    "decoding",
)


def settle_alone(request: Request, family: Family) -> Plan:
    """What will be done.

    Raises:
        ArgumentError: Something was given that the class's `generate` doesn't take.
    """
    model = request.model
    taken = {*bridge.parameters(model.generate), *bridge.parameters(model.forward), *family.takes_besides}
    if "generation_config" in taken:
        taken |= set(bridge.settings(model.generation_config))
    given = {name for name in _OPTIONS if getattr(request, name)} | {*request.kwargs, *request.per_row}
    if unknown := sorted(given - taken) + sorted(request.per_row):
        known = ", ".join(sorted(set(bridge.parameters(model.generate)) - {"kwargs"}))
        raise ArgumentError(f"{type(model).__name__}.generate() doesn't take {', '.join(unknown)}. It takes {known}.")
    return Plan(
        request=request,
        model=model,
        config=settings(model, request.kwargs),
        method=find_method("greedy_search"),
        family=family,
        model_kwargs=request.kwargs,
        processors=LogitsProcessorList(request.logits_processor or ()),
        criteria=StoppingCriteriaList(request.stopping_criteria or ()),
        rows_per_prompt=1,
        default_max_length=True,
        default_min_length=True,
        returns_cache=False,
        own_loop=True,
    )
