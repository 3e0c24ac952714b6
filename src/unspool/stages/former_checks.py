"""Checks of the arguments of contrastive search, DoLa, and diverse and constrained beam search.

Like all checks, they are made before anything runs, and say what would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from unspool import bridge
from unspool import cache as caches
from unspool.decoding.dola import early_layers
from unspool.decoding.phrases import Progress, constraints_of
from unspool.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["check"]


def check(
    method: str,
    model: PreTrainedModel,
    config: GenerationConfig,
    inputs: torch.Tensor | None,
    kwargs: Mapping[str, Any],
    default_max_length: bool,
) -> None:
    """The settings of these methods fit each other, the model and the prompt.

    Args:
        method: The name of the method.
        model: The model.
        config: The config.
        inputs: The prompt, if it was given without a name.
        kwargs: The model's keywords.
        default_max_length: Whether no maximum length was asked for.

    Raises:
        ArgumentError: A setting is wrong.
        UnsupportedError: The method can't be run with this model or cache.
    """
    _groups(method, config)
    if method in ("contrastive_search", "greedy_search"):
        _candidates(method, config)
    if method == "contrastive_search":
        _comparable(model, config, kwargs)
    elif method == "dola_generation":
        _layers(model, config)
    elif method == "constrained_beam_search":
        _constraints(model, config, _prompt(model, config, inputs, kwargs), default_max_length)


def _groups(method: str, config: GenerationConfig) -> None:
    beams, groups, penalty = config.num_beams or 1, config.num_beam_groups or 1, config.diversity_penalty or 0.0
    if method == "constrained_beam_search" and groups > 1:
        raise ArgumentError(
            f"num_beam_groups={groups} doesn't go with constraints or force_words_ids: constrained beams search "
            f"in one group. Leave one of them out."
        )
    if beams % groups:
        raise ArgumentError(
            f"num_beam_groups={groups} doesn't divide num_beams={beams}; a number of beams such as "
            f"{(beams // groups + 1) * groups} would do."
        )
    if method != "group_beam_search":
        if penalty > 0 and groups == 1 and (beams == 1 or method == "beam_search"):
            raise ArgumentError(
                f"diversity_penalty={penalty} is between groups of beams, of which there are none; "
                f"pass num_beams and num_beam_groups as well."
            )
        return
    if groups < 2:
        raise ArgumentError("Diverse beam search needs num_beam_groups of 2 or more.")
    if config.do_sample:
        raise ArgumentError("do_sample=True doesn't go with num_beam_groups: diverse beams are searched, not drawn.")
    if penalty <= 0:
        raise ArgumentError(
            f"diversity_penalty={config.diversity_penalty} would make all groups of beams the same; "
            f"a positive number, such as 1.0, makes them differ."
        )


def _candidates(method: str, config: GenerationConfig) -> None:
    alpha = config.penalty_alpha or 0.0
    if method == "greedy_search" and alpha <= 0:
        return
    if alpha <= 0:
        raise ArgumentError(f"penalty_alpha={config.penalty_alpha} is not a positive number; 0.6 would do.")
    if (config.top_k or 0) < 2:
        raise ArgumentError(
            f"top_k={config.top_k} leaves contrastive search, which penalty_alpha={alpha} asks for, no candidates to "
            f"choose between; 4 would do. For greedy search leave penalty_alpha out."
        )


def _comparable(model: PreTrainedModel, config: GenerationConfig, kwargs: Mapping[str, Any]) -> None:
    name = type(model).__name__
    if config.use_cache is False:
        raise ArgumentError("Contrastive search reads its candidates from a cache; leave out use_cache=False.")
    if bridge.is_stateful(model) or bridge.makes_own_cache(model):
        raise UnsupportedError(
            f"Contrastive search needs a cache that candidates can share, and {name} keeps a state of another kind. "
            f"Sampling with top_k or repetition_penalty works with it."
        )
    cache = kwargs.get(bridge.cache_name(model))
    kind = config.cache_implementation
    if kind not in (None, "dynamic", "dynamic_full") or (cache is not None and getattr(cache, "is_compileable", False)):
        raise UnsupportedError(
            f"Contrastive search needs a dynamic cache, not a {kind or type(cache).__name__}; leave it out."
        )
    if cache is not None and caches.length(cache):
        raise ArgumentError(
            f"Contrastive search compares with the hidden states of the whole prompt, and a cache that holds "
            f"{caches.length(cache)} positions of it has none. Leave the cache out, or give an empty one."
        )


def _layers(model: PreTrainedModel, config: GenerationConfig) -> None:
    name, wanted = type(model).__name__, config.dola_layers
    if model.config.is_encoder_decoder:
        raise UnsupportedError(f"DoLa contrasts the layers of decoder-only models; {name} has an encoder.")
    if bridge.is_stateful(model):
        raise UnsupportedError(f"DoLa contrasts attention layers; {name} is recurrent.")
    if model.get_output_embeddings() is None:
        raise UnsupportedError(f"DoLa needs the head of the model for its early layers; {name} shows none.")
    numbers = isinstance(wanted, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in wanted)
    if wanted not in ("low", "high") and not numbers:
        raise ArgumentError(f"dola_layers={wanted!r} names no layers; 'low', 'high' or a list of indices would do.")
    if not early_layers(model, wanted):
        count = model.config.get_text_config().num_hidden_layers
        raise ArgumentError(
            f"dola_layers={wanted!r} leaves no layer to contrast the last one with; {name} has {count}. "
            f"A list of indices from 0 (the embeddings) to {count - 1} would do."
        )


def _constraints(
    model: PreTrainedModel, config: GenerationConfig, prompt: tuple[list[list[int]], int], default_max_length: bool
) -> None:
    constraints = constraints_of(config)
    if (config.num_beams or 1) < 2:
        raise ArgumentError("constraints and force_words_ids need beams: pass num_beams of 2 or more.")
    if config.do_sample:
        raise ArgumentError("do_sample=True doesn't go with constraints: constrained beams are searched, not drawn.")
    vocab = model.config.get_text_config(decoder=True).vocab_size
    for constraint in constraints:
        ids = [i for part in getattr(constraint, "token_ids", []) for i in (part if isinstance(part, list) else [part])]
        if ids and max(ids) >= vocab:
            raise ArgumentError(f"Constraints hold the id {max(ids)}, but the model's vocabulary has {vocab} ids.")
    rows, length = prompt
    room = config.max_new_tokens
    if room is None:
        room = config.max_length - (0 if default_max_length else length)
    missing = max(Progress(constraints).after(ids).missing() for ids in rows)
    if missing > room:
        raise ArgumentError(
            f"The constraints take at least {missing} tokens, but there is room for {room} only. "
            f"Give a larger max_new_tokens, or fewer constraints."
        )


def _prompt(
    model: PreTrainedModel, config: GenerationConfig, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]
) -> tuple[list[list[int]], int]:
    """The ids that each sequence begins with, as far as they are known, and how many positions those take."""
    if model.config.is_encoder_decoder:
        ids, start = kwargs.get("decoder_input_ids"), config.decoder_start_token_id
        start = [start] if isinstance(start, int) else []
        return ([start], 1) if ids is None else ([[*start, *row] for row in ids.tolist()], ids.shape[1])
    ids = kwargs.get("input_ids", inputs)
    if isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point() and ids.numel():
        return ids.tolist(), ids.shape[1]
    embeds = kwargs.get("inputs_embeds")
    return [[]], 1 if embeds is None else embeds.shape[1]
