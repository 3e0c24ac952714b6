"""Checks of the prompt: it can be read, and leaves room for something after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from unspool import bridge
from unspool import cache as caches
from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["prompt"]

_MEDIA = ("pixel", "input_features", "input_values", "image", "video", "audio", "mm_encoder_outputs")


def prompt(
    model: PreTrainedModel,
    inputs: torch.Tensor | None,
    kwargs: Mapping[str, Any],
    config: GenerationConfig,
    default_max_length: bool,
) -> None:
    """The prompt can be read, and leaves room for at least one token."""
    ids = _ids(model, inputs, kwargs)
    embeds = kwargs.get("inputs_embeds")
    if ids is not None:
        _token_ids(model, ids, kwargs)
        if embeds is None and ids.ndim == 2 and ids.shape[1] == 0:
            raise ArgumentError(
                f"The prompt is empty: input_ids has shape {tuple(ids.shape)}. Give at least one token a row, "
                f"or leave input_ids out to start from bos_token_id."
            )
        held = kwargs.get(bridge.cache_name(model))
        _mask(ids, kwargs.get("attention_mask"), continued=held is not None)
        _past(model, ids, kwargs.get("attention_mask"), held)
    elif isinstance(embeds, torch.Tensor) and kwargs.get(bridge.cache_name(model)) is None:
        _mask(embeds[..., 0], kwargs.get("attention_mask"), continued=False, name="inputs_embeds")
    elif embeds is None and not _has_other_input(model, inputs, kwargs) and config.bos_token_id is None:
        raise ArgumentError("No prompt was given, and bos_token_id, which would stand in for it, is not set.")
    if model.config.is_encoder_decoder:
        _decoder_ids(model, kwargs.get("decoder_input_ids"))
    if not default_max_length and config.max_new_tokens is None:
        _room(model, ids, embeds, kwargs.get("decoder_input_ids"), config)


def _ids(model: PreTrainedModel, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    if model.main_input_name != "input_ids":
        return None
    ids = kwargs.get("input_ids")
    if ids is not None and inputs is not None:
        raise ArgumentError("inputs and input_ids were both given; they are the same argument. Give one.")
    ids = ids if ids is not None else inputs
    if ids is not None and not isinstance(ids, torch.Tensor):
        raise ArgumentError(f"input_ids is a {type(ids).__name__}; a tensor of token ids (batch, length) would do.")
    return ids


def _token_ids(model: PreTrainedModel, ids: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ArgumentError(
            f"input_ids has dtype {ids.dtype}; token ids are integers (torch.long). Pass embeddings as inputs_embeds=."
        )
    if ids.ndim == 1:
        raise ArgumentError(
            f"input_ids has shape {tuple(ids.shape)}; a batch (batch, length) would do: input_ids[None]."
        )
    table = model.get_input_embeddings()
    mixed = any(name.startswith(_MEDIA) for name, value in kwargs.items() if value is not None)
    _token_ids_of(ids, table if isinstance(table, nn.Embedding) and not mixed else None, "input_ids")


def _token_ids_of(ids: torch.Tensor, table: nn.Embedding | None, name: str) -> None:
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ArgumentError(f"{name} has dtype {ids.dtype}; token ids are integers (torch.long).")
    if table is None or ids.numel() == 0 or ids.is_meta:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= table.num_embeddings:
        raise ArgumentError(
            f"{name} holds {low if low < 0 else high}, which is not in the model's vocabulary of "
            f"{table.num_embeddings} ids. Does the tokenizer belong to the model?"
        )


def _mask(ids: torch.Tensor, mask: torch.Tensor | None, *, continued: bool, name: str = "input_ids") -> None:
    if mask is None or not isinstance(mask, torch.Tensor) or ids.ndim != 2:
        return
    if mask.ndim != 2:
        raise ArgumentError(f"attention_mask has shape {tuple(mask.shape)}; it must be 2D, (batch, length).")
    fits = mask.shape[0] == ids.shape[0] and (
        mask.shape[1] == ids.shape[1] or (continued and mask.shape[1] > ids.shape[1])
    )
    if not fits:
        raise ArgumentError(
            f"attention_mask has shape {tuple(mask.shape)}, but {name} {tuple(ids.shape)}; they must be the same."
        )


def _past(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> None:
    past = 0 if cache is None else caches.length(cache)
    held = 0 if cache is None else caches.rows(cache)
    if held and held % ids.shape[0]:
        raise ArgumentError(f"The cache holds {held} rows, but the prompt has {ids.shape[0]}; they must be the same.")
    whole = mask is None or mask.shape == ids.shape
    if whole and past > ids.shape[1] and not bridge.overrides(model, "prepare_inputs_for_generation"):
        raise ArgumentError(
            f"The cache holds {past} positions, but the prompt only {ids.shape[1]}. Give the whole conversation as "
            f"input_ids, or only its new part together with an attention_mask over all of it."
        )


def _decoder_ids(model: PreTrainedModel, ids: torch.Tensor | None) -> None:
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        return
    table = getattr(model.get_decoder(), "get_input_embeddings", lambda: None)()
    _token_ids_of(ids, table if isinstance(table, nn.Embedding) else None, "decoder_input_ids")


def _room(
    model: PreTrainedModel,
    ids: torch.Tensor | None,
    embeds: torch.Tensor | None,
    decoder_ids: torch.Tensor | None,
    config: GenerationConfig,
) -> None:
    if model.config.is_encoder_decoder:
        length, name = (1 if decoder_ids is None else decoder_ids.shape[1]), "decoder_input_ids"
    elif embeds is not None:
        length, name = embeds.shape[1], "inputs_embeds"
    else:
        length, name = (0 if ids is None else ids.shape[1]), "input_ids"
    limit = config.max_length
    if limit is not None and length >= limit:
        raise ArgumentError(
            f"max_length={limit} counts the prompt, and {name} has {length} tokens already, so there is no room for "
            f"new ones. Give a larger max_length, or max_new_tokens."
        )


def _has_other_input(model: PreTrainedModel, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> bool:
    names = {model.main_input_name, "encoder_outputs", "input_ids"}
    encoder = getattr(model, "encoder", None)
    names.add(getattr(encoder, "main_input_name", model.main_input_name))
    return inputs is not None or any(kwargs.get(name) is not None for name in names)
