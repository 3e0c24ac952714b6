"""Stage 2: settles what the model will read, and runs its encoder."""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils import logging

from unspool import bridge
from unspool import cache as caches
from unspool.ambient import without_gradients
from unspool.kept import KeptState
from unspool.plan import ModelInputs, Plan

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["inputs", "with_past"]

logger = logging.get_logger("transformers.unspool")


@without_gradients
def inputs(plan: Plan) -> Generator[Any, Any, ModelInputs]:
    """Settles ids or embeddings, masks, positions, special tokens, lengths and the cache; runs the encoder once.

    Everything has one row per prompt. Yields nothing.
    """
    kept = KeptState(plan.model, plan.model_kwargs.get(bridge.cache_name(plan.model)))
    with kept.in_place():
        made = _prepare(plan, kept)
    return made
    yield


def _prepare(plan: Plan, kept: KeptState) -> ModelInputs:
    model, family = plan.model, plan.family
    config, kwargs = copy.copy(plan.config), dict(plan.model_kwargs)
    accepted = bridge.parameters(model.forward)
    given, kwargs = family.gather(model, plan.request.inputs, config, kwargs)
    has_mask = kwargs.get("attention_mask") is not None
    tensor, name, kwargs = bridge.model_inputs(model, given, config, kwargs)
    bridge.prepare_special_tokens(model, config, has_mask, tensor.device, tensor.shape[0])
    if not model.config.is_encoder_decoder:
        _warn_of_right_padding(config, tensor, kwargs.get("attention_mask"))
        if name == "inputs_embeds":
            config.use_cache = True
    _masks_and_positions(model, config, tensor, kwargs, accepted, has_mask)
    kwargs = family.encode(model, tensor, name, config, kwargs)
    ids, kwargs = family.start(model, tensor, name, config, kwargs)
    ids = _heal(plan, config, ids)
    if family.counts_new_tokens:
        config = bridge.settle_lengths(
            model,
            config,
            default_max_length=plan.default_max_length,
            default_min_length=plan.default_min_length,
            name=name,
            tensor=tensor,
            length=ids.shape[1],
        )
    if "logits_to_keep" not in kwargs and bridge.supports_logits_to_keep(model):
        kwargs["logits_to_keep"] = 1
    embedded = name == "inputs_embeds" and not model.config.is_encoder_decoder
    _cache(plan, config, kwargs, ids, tensor if embedded else None)
    kwargs["use_cache"] = config.use_cache
    return with_past(
        plan,
        ModelInputs(
            input_ids=ids,
            tensor=tensor,
            name=name,
            kwargs=kwargs,
            config=config,
            kept=kept,
            offset=tensor.shape[1] - ids.shape[1] if embedded else 0,
        ),
    )


def with_past(plan: Plan, made: ModelInputs) -> ModelInputs:
    """Settles which positions are still to be read, when the cache holds some of the prompt already."""
    held = made.kwargs.get(bridge.cache_name(plan.model))
    if held is None:
        return made
    past, length = caches.length(held), made.input_ids.shape[1]
    covered = bridge.mask_length(made.config, made.kwargs.get(plan.family.prefix + "attention_mask"))
    if caches.is_recurrent(held) and not past:
        if covered <= length and not made.offset:  # a state doesn't tell how much it has read: all is read anew
            held.reset()
        return made
    if made.offset:
        return replace(made, reused=past, only_last=length + made.offset - past)
    if covered != length:  # only what is new was given
        return replace(made, reused=past, offset=past if covered > length else 0)
    only_last = length - past
    if past and only_last == 0:  # the last token is read once more, for what comes after it
        caches.crop(held, 1)
        past, only_last = length - 1, 1
    return replace(made, reused=past, only_last=only_last)


def _masks_and_positions(
    model: PreTrainedModel,
    config: GenerationConfig,
    tensor: torch.Tensor,
    kwargs: dict[str, Any],
    accepted: Any,
    has_mask: bool,
) -> None:
    if model.config.is_encoder_decoder:
        return
    if not has_mask and "attention_mask" in accepted:
        kwargs["attention_mask"] = bridge.attention_mask(model, tensor, config, kwargs)
    if kwargs.get("position_ids") is None and "position_ids" in accepted:
        kwargs["position_ids"] = bridge.position_ids(model, tensor, kwargs)
    if "attention_mask" in accepted:
        bridge.drop_full_mask(model, config, kwargs)


def _warn_of_right_padding(config: GenerationConfig, tensor: torch.Tensor, mask: torch.Tensor | None) -> None:
    pad = bridge.special_tokens(config, "pad")
    if pad is None or tensor.shape[0] == 1 or tensor.ndim != 2:
        return
    by_mask = mask is not None and mask.shape == tensor.shape
    padded = mask[:, -1] == 0 if by_mask and mask is not None else tensor[:, -1] == pad
    if bool(padded.any()):
        logger.warning(
            "A decoder-only architecture is being used, but right-padding was detected! For correct generation "
            "results, please set `padding_side='left'` when initializing the tokenizer."
        )


def _heal(plan: Plan, config: GenerationConfig, ids: torch.Tensor) -> torch.Tensor:
    """Token healing: takes the last token back and lets the model finish the word."""
    if not config.token_healing:
        return ids
    healed: torch.Tensor = plan.model.heal_tokens(ids, plan.request.tokenizer)
    return healed


def _cache(
    plan: Plan, config: GenerationConfig, kwargs: dict[str, Any], ids: torch.Tensor, embeds: torch.Tensor | None
) -> None:
    length = (config.max_length or 0) - 1
    if embeds is not None and embeds.shape[1] != ids.shape[1]:
        length += embeds.shape[1]
    name = bridge.cache_name(plan.model)
    given = kwargs.get(name)
    one_row = copy.copy(config)  # the cache is filled by one row per prompt, and repeated after
    one_row.num_beams = one_row.num_return_sequences = 1
    rolls_back = plan.rolls_back
    bridge.prepare_cache(plan.model, one_row, kwargs, batch_size=ids.shape[0], length=length, rolls_back=rolls_back)
    if rolls_back:
        bridge.keep_past(kwargs.get(name))
    if given is None:
        caches.grow_in_place(kwargs.get(name), length)
