"""Checks of arguments, made before anything runs. Each raises `ArgumentError` and says what would do."""

from __future__ import annotations

import contextlib
import copy
import difflib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList, SynthIDTextWatermarkingConfig
from transformers.utils import logging

from unspool import bridge
from unspool.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from unspool.families.base import Family

logger = logging.get_logger("transformers.unspool")

_ABLE_TO_SHOW_ATTENTION = {"eager", "flex_attention"}
_FALLS_BACK_TO_EAGER = {"falcon", "minimax"}  # their modules compute attentions apart when these are asked for


@contextlib.contextmanager
def wrong_arguments() -> Iterator[None]:
    """Makes what transformers says of values at the call an `ArgumentError`."""
    try:
        yield
    except ArgumentError:
        raise
    except (ValueError, TypeError) as error:
        raise ArgumentError(str(error)) from error


def can_generate(model: Any) -> None:
    """The model is one that generates."""
    able = getattr(model, "can_generate", None)
    if able is None or not able() or not hasattr(model, "generate"):
        raise ArgumentError(
            f"model={type(model).__name__} can't generate: it has no language modelling head that `generate` could "
            f"use. Load it with a class such as AutoModelForCausalLM."
        )


def known_names(model: PreTrainedModel, kwargs: Mapping[str, Any]) -> None:
    """Every keyword is the config's or the model's."""
    unknown = [name for name, value in kwargs.items() if not bridge.is_model_kwarg(model, name, value)]
    if not unknown:
        return
    known = _known(model)
    hints = [f"{name!r}{_nearest(name, known)}" for name in unknown]
    raise ArgumentError(
        f"Unknown arguments: {'; '.join(hints)}. Neither GenerationConfig nor {type(model).__name__} takes them."
    )


def processors(model: PreTrainedModel, config: GenerationConfig) -> None:
    """The settings of the logits processors are such as can be: they are built once, for a prompt of one token."""
    trial = copy.copy(config)
    trial.guidance_scale = trial.watermarking_config = trial.sequence_bias = None
    ids = torch.zeros(1, 1, dtype=torch.long)
    if model.config.is_encoder_decoder and trial.decoder_start_token_id is None and trial.bos_token_id is None:
        return
    bridge.prepare_special_tokens(model, trial, True, ids.device, 1)
    with warnings.catch_warnings(), wrong_arguments():
        warnings.simplefilter("ignore")
        bridge.logits_processors(
            model,
            trial,
            prompt_length=1,
            encoder_input_ids=ids,
            prefix_allowed_tokens_fn=None,
            custom=LogitsProcessorList(),
            kwargs={},
            negative_prompt_ids=None,
            negative_prompt_attention_mask=None,
        )


def caching(config: GenerationConfig, cache: Any) -> None:
    """The cache is one, is not asked for twice, and chunks of the prompt hold something."""
    if isinstance(cache, tuple):
        raise ArgumentError(
            "A tuple of tensors was given as cache; a transformers.Cache would do, such as DynamicCache()."
        )
    if cache is not None and config.cache_implementation is not None:
        raise ArgumentError(
            f"cache and cache_implementation={config.cache_implementation!r} were both given; give one of them."
        )
    size = config.prefill_chunk_size
    if size is not None and size < 1:
        raise ArgumentError(f"prefill_chunk_size={size} is no number of tokens; give 1 or more, or leave it out.")


def beams(config: GenerationConfig, method: str) -> None:
    """The way of searching with beams is one there is."""
    if config.low_memory and method != "contrastive_search":
        raise ArgumentError(
            "low_memory=True is not supported, as it is not in transformers any more; leave it out, or pass "
            "cache_implementation='offloaded'."
        )


def goes_with(model: PreTrainedModel, family: Family, method: str) -> None:
    """The model's kind can be decoded by the method."""
    if method in family.refuses:
        raise ArgumentError(
            f"{type(model).__name__} doesn't go with {method}; greedy search, sampling or beams would do."
        )


def lengths(model: PreTrainedModel, family: Family, config: GenerationConfig) -> None:
    """Who counts new tokens is told if the model's kind doesn't."""
    if config.max_new_tokens is not None and not family.counts_new_tokens:
        logger.warning_once(
            f"{type(model).__name__} reads max_length only, here {config.max_length}; "
            f"max_new_tokens={config.max_new_tokens} has no effect."
        )


def rows_stay(config: GenerationConfig, users: Iterable[Any], kind: str = "logits_processor") -> None:
    """What keeps state by row isn't used with beams, which change places, unless it can follow them."""
    if (config.num_beams or 1) == 1:
        return
    if isinstance(config.watermarking_config, SynthIDTextWatermarkingConfig):
        raise ArgumentError(
            "watermarking_config asks for SynthID, which keeps what it has seen of each row; beams change places. "
            "A WatermarkingConfig would do, or num_beams=1."
        )
    for user in users:
        if getattr(user, "keeps_rows", False) and not callable(getattr(user, "reorder", None)):
            raise ArgumentError(
                f"{kind} holds a {type(user).__name__} that keeps state by row and has no `reorder(parents)`; the "
                f"{config.num_beams} beams of a prompt change places. Give it one, or use num_beams=1."
            )


def assisted(
    model: PreTrainedModel,
    inputs: torch.Tensor | None,
    kwargs: Mapping[str, Any],
    config: GenerationConfig,
    *,
    drafts: bool,
) -> None:
    """Drafts can be made and checked: one prompt, of ids, and a cache that can take tokens back."""
    name, early = type(model).__name__, config.assistant_early_exit is not None
    main = inputs if inputs is not None else kwargs.get(model.main_input_name, kwargs.get("inputs_embeds"))
    if isinstance(main, torch.Tensor) and main.shape[0] > 1:
        raise ArgumentError(f"Assisted decoding takes one prompt at a time; the batch has {main.shape[0]}.")
    if config.use_cache is False:
        raise ArgumentError("Assisted decoding needs a cache; leave out use_cache=False.")
    if bridge.makes_own_cache(model):
        raise ArgumentError(f"Assisted decoding needs a cache that can be cut; {name} has none.")
    if (drafts or early) and kwargs.get("inputs_embeds") is not None and not model.config.is_encoder_decoder:
        raise ArgumentError("A draft model reads token ids, so inputs_embeds won't do; give the prompt as input_ids.")
    if early and getattr(getattr(model, model.base_model_prefix, None), "config", None) is None:
        raise UnsupportedError(
            f"assistant_early_exit={config.assistant_early_exit} leaves out the last layers of the model inside of "
            f"{name}, which has none apart. Prompt lookup (prompt_lookup_num_tokens) works with it."
        )
    if early and config.guidance_scale not in (None, 1, 1.0):
        raise UnsupportedError(
            f"guidance_scale={config.guidance_scale} doesn't go with assistant_early_exit: the draft, which is the "
            f"model itself without its last layers, would share the guidance's cache. Leave one of them out."
        )


def randomness(seed: Any, generator: Any) -> None:
    """At most one of seed and generator is given, and it is one."""
    if seed is not None and generator is not None:
        raise ArgumentError("seed and generator were both given; a stream has one source of randomness. Give one.")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"seed={seed!r} is not an int.")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ArgumentError(f"generator is a {type(generator).__name__}; a torch.Generator would do.")


def stop_strings(config: GenerationConfig, tokenizer: Any) -> None:
    """Stop strings and token healing come with the tokenizer that they need."""
    if config.token_healing and tokenizer is None:
        raise ArgumentError("token_healing=True needs the model's tokenizer; pass it as `tokenizer=`.")
    if config.stop_strings is not None and tokenizer is None:
        raise ArgumentError(
            f"stop_strings={config.stop_strings!r} needs the model's tokenizer; pass it as `tokenizer=`."
        )


def attentions(model: PreTrainedModel, config: GenerationConfig, *, drop_in: bool) -> None:
    """Attentions are only asked of an implementation that can give them.

    `generate()`, which stands in for transformers' own, gives none then, as that does, and warns.
    """
    unable = bridge.attention_implementations(model) - _ABLE_TO_SHOW_ATTENTION
    if not config.output_attentions or not unable or model.config.model_type in _FALLS_BACK_TO_EAGER:
        return
    message = (
        f"output_attentions=True can't be had with attn_implementation={sorted(unable)[0]!r}, which doesn't keep "
        f"attention weights. Call model.set_attn_implementation('eager') first."
    )
    if not drop_in:
        raise ArgumentError(message)
    logger.warning_once(message)


def _known(model: PreTrainedModel) -> set[str]:

    from transformers import GenerationConfig

    from unspool.plan import Request

    names = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    names |= set(bridge.parameters(model.forward))
    names |= {*Request.__dataclass_fields__, *bridge.CACHE_NAMES, "pipeline", "sinks", "streamer"}
    return names - {"kwargs", "self", "args"}


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
