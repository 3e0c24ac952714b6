"""All that unspool uses of transformers without a public name, and all that differs between its versions.

Nothing else in the package touches a name of transformers that begins with an underscore. When a release
moves one of them, `tests/test_bridge.py` says which, and this is the file to mend. A model class may override
any of these hooks; they are always called through the model, so that its own version runs.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import transformers
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation import PromptLookupCandidateGenerator
from transformers.generation import candidate_generator as drafts
from transformers.generation import utils as generation_utils
from transformers.generation.configuration_utils import GenerationMode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from transformers import PreTrainedModel
    from transformers.utils.generic import ModelOutput

CACHE = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else ("past_key_values")
)
"""The keyword under which models take their cache: `cache` in the newest releases, `past_key_values` before."""

CACHE_NAMES: tuple[str, ...] = ("cache", "past_key_values", "cache_params")
"""The keywords under which callers may give a cache, whatever the release."""

STATE_NAMES: tuple[str, ...] = tuple(generation_utils.ALL_CACHE_NAMES)
"""The keywords and output fields that hold a cache or a legacy state."""

PREFILL_ONLY: tuple[str, ...] = getattr(generation_utils, "MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL", ())
"""Model inputs that only the forward over the prompt takes."""

HOOKS: tuple[str, ...] = (
    "_get_candidate_generator",
    "_get_logits_processor",
    "_get_stopping_criteria",
    "_expand_inputs_for_generation",
    "_merge_criteria_processor_list",
    "_optimize_model_for_decode",
    "_prefill",
    "_prepare_attention_mask_for_generation",
    "_prepare_cache_for_generation",
    "_prepare_decoder_input_ids_for_generation",
    "_prepare_generated_length",
    "_prepare_generation_config",
    "_prepare_model_inputs",
    "_prepare_position_ids_for_generation",
    "_prepare_special_tokens",
    "_sample",
    "_supports_default_dynamic_cache",
    "_supports_logits_to_keep",
    "_update_model_kwargs_for_generation",
    "_valid_auto_compile_criteria",
    "_validate_generated_length",
    "_validate_generation_mode",
    "_validate_model_kwargs",
)
"""The hooks used here; each must exist in every supported release."""

WHISPER_WINDOW, WHISPER_JUDGED, WHISPER_SEGMENTS = "generate_with_fallback", "_need_fallback", "_retrieve_segment"
WHISPER: tuple[str, ...] = (WHISPER_WINDOW, WHISPER_JUDGED, WHISPER_SEGMENTS)
"""The methods of Whisper's `generate` that a window, the verdict on an attempt at it and its segments come by."""

DENOISE = "_denoising_step"
"""The method by which a block-diffusion model revises its block."""

UPDATE = "_update_model_kwargs_for_generation"
"""The hook that takes up what a forward leaves behind."""

PROCESSORS = "_get_logits_processor"
"""The hook that builds the logits processors."""

SORTS_DRAWN_BEAMS: bool = ".sort(" in inspect.getsource(generation_utils.GenerationMixin._get_top_k_continuations)
"""Whether beam sampling puts the continuations it has drawn in the order of their scores, as newer releases do."""

_HAS_MULTIMODAL_ENCODING = hasattr(GenerationMixin, "_maybe_prepare_encoder_kwargs_for_generation")
_DROPS_FULL_MASKS = CACHE == "cache"


def overrides(model: PreTrainedModel, hook: str) -> bool:
    """Whether the model's class (or the model itself) has a version of its own of a generation hook."""
    return hook in vars(model) or getattr(type(model), hook, None) is not getattr(GenerationMixin, hook, None)


def has_own_generate(model: PreTrainedModel) -> bool:
    """Whether the model's class replaces the generation loop itself, so that the common one would be wrong."""
    qualified = getattr(type(model).generate, "__qualname__", "")
    return not qualified.startswith("GenerationMixin.") or overrides(model, "_sample")


def cache_name(model: PreTrainedModel) -> str:
    """The keyword under which this model takes its cache."""
    return "cache_params" if CACHE == "past_key_values" and "mamba" in type(model).__name__.lower() else CACHE


def mode(config: GenerationConfig, assistant_model: Any = None) -> str:
    """The name of the decoding method that a config asks for, such as `"greedy_search"` or `"beam_sample"`."""
    return str(config.get_generation_mode(assistant_model).value)


# ---------------------------------------------------------------------------------------------- configure


def generation_config(
    model: PreTrainedModel, config: GenerationConfig | None, kwargs: Mapping[str, Any], *, streams: bool
) -> tuple[GenerationConfig, dict[str, Any]]:
    """The config of a run by transformers' precedence, and the keywords that are the model's.

    Of a stream all outputs that are asked for can be seen, so there is no warning that `generate` won't return them.
    """
    asked = any(kwargs.get(flag) for flag in GenerationConfig.extra_output_flags)
    quiet = streams and asked and "return_dict_in_generate" not in kwargs
    merged, model_kwargs = model._prepare_generation_config(
        config, **({**kwargs, "return_dict_in_generate": True} if quiet else kwargs)
    )
    if quiet:
        source = config if config is not None else model.generation_config
        merged.return_dict_in_generate = bool(source.return_dict_in_generate)
    return merged, dict(model_kwargs)


def is_model_kwarg(model: PreTrainedModel, name: str, value: Any) -> bool:
    """Whether the model takes a keyword of this name."""
    try:
        model._validate_model_kwargs({name: value})
    except ValueError:
        return False
    return True


def validate_mode(
    model: PreTrainedModel, config: GenerationConfig, assistant_model: Any, kwargs: dict[str, Any]
) -> None:
    """Refuses decoding methods that the model's class rules out."""
    model._validate_generation_mode(config.get_generation_mode(assistant_model), config, kwargs)


def settings(config: Any) -> list[str]:
    """The names of the settings that a config holds."""
    return [] if config is None else [name for name in vars(config) if not name.startswith("_")]


def special_tokens(config: GenerationConfig, kind: str) -> torch.Tensor | None:
    """The `"bos"`, `"eos"`, `"pad"` or `"decoder_start"` ids of a prepared config, as a tensor."""
    return getattr(config, f"_{kind}_token_tensor", None)


def attention_implementations(model: PreTrainedModel) -> set[str]:
    """The attention implementations in use where text is generated, and where an encoder reads it."""
    config = model.config
    parts = [config.get_text_config(decoder=True)]
    if config.is_encoder_decoder:
        parts.append(config.get_text_config(encoder=True))
    return {getattr(part, "_attn_implementation", None) or "eager" for part in parts}


# ------------------------------------------------------------------------------------------------- inputs


def model_inputs(
    model: PreTrainedModel, inputs: torch.Tensor | None, config: GenerationConfig, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, str, dict[str, Any]]:
    """The main input of the model, its name, and the other keywords."""
    tensor, name, rest = model._prepare_model_inputs(inputs, config.bos_token_id, kwargs)
    return tensor, name, rest


def prepare_special_tokens(
    model: PreTrainedModel, config: GenerationConfig, has_mask: bool, device: torch.device, batch_size: int
) -> None:
    """Puts the special tokens on the config as tensors."""
    extra = {"batch_size": batch_size} if _accepts(GenerationMixin._prepare_special_tokens, "batch_size") else {}
    model._prepare_special_tokens(config, has_mask, device=device, **extra)


def attention_mask(
    model: PreTrainedModel, tensor: torch.Tensor, config: GenerationConfig, kwargs: dict[str, Any]
) -> torch.Tensor:
    """The mask that transformers infers when none is given."""
    mask: torch.Tensor = model._prepare_attention_mask_for_generation(tensor, config, kwargs)
    return mask


def position_ids(model: PreTrainedModel, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """The position ids of the prompt."""
    positions: torch.Tensor = model._prepare_position_ids_for_generation(tensor, kwargs)
    return positions


def drop_full_mask(model: PreTrainedModel, config: GenerationConfig, kwargs: dict[str, Any]) -> None:
    """Leaves out a mask of ones where the release does so, and remembers its length for `mask_length`."""
    if not _DROPS_FULL_MASKS:
        return
    from transformers import StaticCache
    from transformers.utils.generic import is_flash_attention_requested

    static = config.cache_implementation == "static" or isinstance(kwargs.get(CACHE), StaticCache)
    flash = is_flash_attention_requested(model.config)
    if not (flash and static) and bool((kwargs["attention_mask"] == 1).all()):
        config._mask_length = kwargs["attention_mask"].shape[1]
        kwargs["attention_mask"] = None


def mask_length(config: GenerationConfig, mask: torch.Tensor | None) -> int:
    """How many positions the mask covers, or covered before it was dropped; -1 when there was none."""
    return int(mask.shape[1]) if mask is not None else int(getattr(config, "_mask_length", -1))


def encode(
    model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Runs the encoder, or the vision tower where it runs apart; returns the keywords with its outputs."""
    if _HAS_MULTIMODAL_ENCODING:
        if kwargs.get("encoder_outputs") is not None and kwargs.get("mm_encoder_outputs") is not None:
            return kwargs
        made = model._maybe_prepare_encoder_kwargs_for_generation(tensor, kwargs, name, config)
    elif model.config.is_encoder_decoder and "encoder_outputs" not in kwargs:
        made = model._prepare_encoder_decoder_kwargs_for_generation(tensor, kwargs, name, config)
    else:
        return kwargs
    return dict(made)


def decoder_input_ids(
    model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The first ids of the decoder of an encoder-decoder model."""
    ids, rest = model._prepare_decoder_input_ids_for_generation(
        batch_size=tensor.shape[0],
        model_input_name=name,
        model_kwargs=kwargs,
        decoder_start_token_id=special_tokens(config, "decoder_start"),
        device=tensor.device,
    )
    return ids, rest


def expand_inputs(
    model: PreTrainedModel, ids: torch.Tensor, count: int, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Ids and keywords with each row repeated `count` times."""
    expanded, rest = model._expand_inputs_for_generation(
        input_ids=ids, expand_size=count, is_encoder_decoder=model.config.is_encoder_decoder, **kwargs
    )
    return expanded, rest


def settle_lengths(
    model: PreTrainedModel,
    config: GenerationConfig,
    *,
    default_max_length: bool,
    default_min_length: bool,
    name: str,
    tensor: torch.Tensor,
    length: int,
) -> GenerationConfig:
    """Turns `max_new_tokens` and its kin into lengths that count the prompt, and validates them."""
    settled = model._prepare_generated_length(
        generation_config=config,
        has_default_max_length=default_max_length,
        has_default_min_length=default_min_length,
        model_input_name=name,
        inputs_tensor=tensor,
        input_ids_length=length,
    )
    model._validate_generated_length(settled, length, default_max_length)
    return settled


def prepare_cache(
    model: PreTrainedModel,
    config: GenerationConfig,
    kwargs: dict[str, Any],
    *,
    batch_size: int,
    length: int,
    rolls_back: bool,
) -> None:
    """Puts the cache that the config asks for into the keywords.

    Static caches that transformers remembers on the model are out of its sight meanwhile: what one call did must
    not change the next, and two streams must not share a cache.
    """
    names = ("_cache", "_previous_max_cache_length")
    remembered = {name: vars(model).pop(name) for name in names if name in vars(model)}
    try:
        mode = GenerationMode.ASSISTED_GENERATION if rolls_back else GenerationMode.GREEDY_SEARCH
        model._prepare_cache_for_generation(config, kwargs, mode, batch_size, length)
    finally:
        for name in names:
            vars(model).pop(name, None)
        vars(model).update(remembered)


def keep_past(cache: Any) -> None:
    """Makes a cache keep what it would drop, so that tokens can be taken back; older releases need no telling."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def can_crop(cache: Any) -> bool:
    """Whether a cache that has been filled can give back its last positions."""
    return bool(getattr(cache, "is_croppable", True))


def crop(cache: Any, count: int) -> None:
    """Takes the last `count` positions off a cache, and lets it drop what it kept for that."""
    if count or hasattr(cache, "activate_past_recording"):
        cache.crop(-count)


def makes_own_cache(model: PreTrainedModel) -> bool:
    """Whether the model keeps its state in a form of its own instead of a `Cache`."""
    return not model._supports_default_dynamic_cache()


def draws_while_reading(model: PreTrainedModel) -> bool:
    """Whether reading the prompt draws random numbers, as VibeVoice's ear does: for each row, so rows come first."""
    return hasattr(model.config, "acoustic_tokenizer_encoder_config")


def supports_logits_to_keep(model: PreTrainedModel) -> bool:
    """Whether the forward can compute the last position's logits only."""
    return bool(model._supports_logits_to_keep())


# ------------------------------------------------------------------------------------------- constraints


def logits_processors(
    model: PreTrainedModel,
    config: GenerationConfig,
    *,
    prompt_length: int,
    encoder_input_ids: torch.Tensor,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None,
    custom: LogitsProcessorList,
    kwargs: dict[str, Any],
    negative_prompt_ids: torch.Tensor | None,
    negative_prompt_attention_mask: torch.Tensor | None,
) -> LogitsProcessorList:
    """The processors that the config asks for, in transformers' order, with the caller's among them."""
    processors: LogitsProcessorList = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt_length,
        encoder_input_ids=encoder_input_ids,
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        logits_processor=custom,
        device=encoder_input_ids.device,
        model_kwargs=kwargs,
        negative_prompt_ids=negative_prompt_ids,
        negative_prompt_attention_mask=negative_prompt_attention_mask,
    )
    return processors


def former_processors(
    processors: LogitsProcessorList, own: Iterable[Any], rows_per_prompt: int | None = None
) -> LogitsProcessorList:
    """The processors as the decoding methods that left transformers had them.

    The repetition penalty counts padding as well, and so doesn't ask how many rows there are.

    Args:
        processors: The processors of the run.
        own: Those of them that the caller made, which stay as they are.
        rows_per_prompt: The rows of a prompt that are processed at once, if it is not all of them.
    """
    theirs = {id(processor) for processor in own}
    made = LogitsProcessorList()
    for each in processors:
        if id(each) in theirs:
            made.append(each)
        elif isinstance(getattr(each, "prompt_ignore_length", None), torch.Tensor):
            made.append(RepetitionPenaltyLogitsProcessor(each.penalty))
        elif isinstance(each, PrefixConstrainedLogitsProcessor) and rows_per_prompt is not None:
            made.append(PrefixConstrainedLogitsProcessor(each._prefix_allowed_tokens_fn, rows_per_prompt))
        else:
            made.append(each)
    return made


def leading_processors(processors: LogitsProcessorList) -> int:
    """How many processors come before the one that made groups of beams diverse."""
    before = (UnbatchedClassifierFreeGuidanceLogitsProcessor, SequenceBiasLogitsProcessor)
    return next((i for i, each in enumerate(processors) if not isinstance(each, before)), len(processors))


def is_stateful(model: PreTrainedModel) -> bool:
    """Whether the model keeps a recurrent state, which can't be taken back or shared by candidates."""
    kept_on_modules = any("recurrent_states" in vars(module) for module in model.modules())  # as before 5.24
    return bool(model._is_stateful) or kept_on_modules


def stopping_criteria(
    model: PreTrainedModel, config: GenerationConfig, custom: StoppingCriteriaList, tokenizer: Any
) -> StoppingCriteriaList:
    """The stopping criteria that the config asks for, with the caller's after them."""
    criteria: StoppingCriteriaList = model._get_stopping_criteria(
        generation_config=config, stopping_criteria=custom, tokenizer=tokenizer
    )
    return criteria


# --------------------------------------------------------------------------------------- prefill, decode


def update_model_kwargs(
    model: PreTrainedModel, outputs: ModelOutput, kwargs: dict[str, Any], count: int = 1
) -> dict[str, Any]:
    """The keywords of the next forward, from those of the last one and what it gave, `count` tokens further on."""
    more = {} if count == 1 else {"num_new_tokens": count}
    updated: dict[str, Any] = model._update_model_kwargs_for_generation(
        outputs, kwargs, is_encoder_decoder=model.config.is_encoder_decoder, **more
    )
    return updated


def draft_kwargs(model: PreTrainedModel, kwargs: dict[str, Any], length: int, drafted: int) -> dict[str, Any]:
    """The keywords of a forward over some drafted tokens, with masks and positions up to `length`."""
    encoder_decoder = model.config.is_encoder_decoder
    longer = drafts._prepare_attention_mask(dict(kwargs), length, encoder_decoder)
    longer = drafts._prepare_token_type_ids(longer, length)
    positions = longer.get("position_ids")
    if positions is not None and drafted:
        longer = drafts._prepare_position_ids(longer, positions.shape[-1] + drafted, encoder_decoder)
    return dict(longer)


def candidate_generator(
    model: PreTrainedModel,
    config: GenerationConfig,
    *,
    ids: torch.Tensor,
    tensor: torch.Tensor,
    processors: LogitsProcessorList,
    kwargs: dict[str, Any],
    assistant_model: Any,
    tokenizer: Any,
    assistant_tokenizer: Any,
) -> Any:
    """Transformers' source of drafts that the config and the assistant ask for."""
    source = model._get_candidate_generator(
        generation_config=config,
        input_ids=ids,
        inputs_tensor=tensor,
        assistant_model=assistant_model,
        logits_processor=processors,
        target_tokenizer=tokenizer,
        assistant_tokenizer=assistant_tokenizer,
        model_kwargs=kwargs,
    )
    if isinstance(source, PromptLookupCandidateGenerator) and source.eos_token_id is None:
        source.eos_token_id = ids.new_empty(0)  # transformers 5.6 looks for it all the same
    return source


def pipeline_setting(pipe: Any, name: str) -> Any:
    """A setting that a pipeline was made with; None if it wasn't set."""
    return pipe._batch_size if name == "batch_size" else pipe._preprocess_params.get(name)


def reorders_cache_itself(model: PreTrainedModel) -> bool:
    """Whether the model has a way of its own to reorder its state for beams."""
    return hasattr(model, "_reorder_cache")


def reorder_cache(model: PreTrainedModel, cache: Any, index: torch.Tensor) -> Any:
    """The model's state with its rows in another order, made by the model itself."""
    return model._reorder_cache(cache, index)


def own_prefill(
    model: PreTrainedModel, ids: torch.Tensor, config: GenerationConfig, kwargs: dict[str, Any]
) -> ModelOutput:
    """The model's own way of reading the prompt."""
    return model._prefill(ids, config, kwargs)


def media_chunks(
    model: PreTrainedModel, encoded: Mapping[str, Any] | None, ids: torch.Tensor, size: int
) -> list[dict[str, Any]]:
    """The encoded images and videos that each chunk of the prompt takes: the rows of the placeholders in it."""
    slice_output = getattr(generation_utils, "_slice_mm_encoder_output", None)
    chunks: list[dict[str, Any]] = [{} for _ in torch.split(ids, size, dim=-1)]
    for modality, output in (encoded or {}).items():
        if output is None or slice_output is None:
            continue
        here = ids == getattr(model.config, f"{modality}_token_id")
        rows = here.flatten().cumsum(0).view_as(here) - 1
        for chunk, mask, wanted in zip(chunks, here.split(size, dim=-1), rows.split(size, dim=-1), strict=True):
            if mask.any():
                chunk[modality] = slice_output(output, wanted[mask])
    return chunks


def forward_call(
    model: PreTrainedModel, config: GenerationConfig, kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], bool]:
    """The model, or its compiled forward where config, cache and device allow one; and whether it's still to be made.

    transformers compiles on the CPU only if a setting without a public name says so. Here asking for it is enough.
    """
    asked = config.compile_config
    if asked is None and model.device.type == "cpu":
        return cast("Callable[..., Any]", model), False
    if asked is not None:
        config = copy.copy(config)
        config.compile_config = copy.copy(asked)
        config.compile_config._compile_all_devices = True
    if not model._valid_auto_compile_criteria(kwargs, config):
        return cast("Callable[..., Any]", model), False
    before = vars(model).get("_compiled_call")
    call: Callable[..., Any] = model.get_compiled_call(config.compile_config)
    return call, call is not before


def decode_settings(model: PreTrainedModel) -> Callable[[], AbstractContextManager[None]] | None:
    """A context that tunes the model for decoding, to be entered around each forward; None when it would do nothing."""
    experts: Any = getattr(model, "get_experts_implementation", dict)()
    names = experts.values() if isinstance(experts, Mapping) else [experts]
    if model.device.type == "cpu" or "grouped_mm" not in names:
        return None
    return cast("Callable[[], AbstractContextManager[None]]", model._optimize_model_for_decode)


MAJOR_VERSION = transformers.__version__.split(".")[0]

REMEMBERING: tuple[type, ...] = (
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)
"""Transformers' logits processors that keep something from one step to the next."""


def global_random_state(device: torch.device) -> torch.Tensor:
    """The state of torch's own source of randomness for a device."""
    state: torch.Tensor = (
        torch.get_rng_state() if device.type == "cpu" else getattr(torch, device.type).get_rng_state(device)
    )
    return state


def set_global_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Puts it back."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, device)


def hand_on_to_loop() -> None:
    """Keeps tokenizer, assistants and streamer for a custom decoding loop, to which transformers doesn't hand them.

    To be called while transformers asks the loop for its signature. It then holds these arguments under
    `generation_mode_kwargs`, to be replaced by those among `kwargs` that the signature names; so they are put there.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "_extract_generation_mode_kwargs":
        frame = frame.f_back
    if frame is None:
        return
    held, kwargs = frame.f_locals.get("generation_mode_kwargs"), frame.f_locals.get("kwargs")
    if isinstance(held, dict) and isinstance(kwargs, dict):
        names = ("tokenizer", "assistant_tokenizer", "assistant_model")
        kwargs.update({name: held[name] for name in names if held.get(name) is not None})


def _accepts(function: Callable[..., Any], name: str) -> bool:
    return name in parameters(function)


def has_own_sample(model: Any) -> bool:
    """Whether the model's class has a sampling loop of its own."""
    return hasattr(type(model), "_sample") and overrides(model, "_sample")


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or method, which are looked up once."""
    return _parameters(getattr(function, "__func__", function), bound=hasattr(function, "__func__"))


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any], bound: bool) -> Mapping[str, inspect.Parameter]:
    named = dict(inspect.signature(function).parameters)
    if bound:
        named.pop(next(iter(named)))
    return named


def calls_sample(model: PreTrainedModel) -> bool:
    """Whether the class's own `generate` calls the sampling loop by its name, instead of the common `generate`."""
    own: list[Any] = [kind for kind in type(model).__mro__ if "generate" in vars(kind) and kind is not GenerationMixin]
    return bool(own) and ".generate(" not in _body(own[0].generate) and "self._sample(" in inspect.getsource(own[0])


def _body(function: Callable[..., Any]) -> str:
    """A function's source without its docstring."""
    source, doc = inspect.getsource(function), function.__doc__ or ""
    return source.replace(doc, "")


def stand_in(
    model: PreTrainedModel,
    methods: Mapping[str, Callable[..., Any]],
    *,
    sample: Callable[..., Any] | None = None,
    apart: bool = False,
) -> PreTrainedModel:
    """The same model with some methods replaced; the model itself is left as it is.

    Args:
        model: The model, whose weights and attributes the other one shares.
        methods: Take what the model's methods of these names take, the model first. A name with a dot is that of a
            method of one of its parts.
        sample: Takes what transformers' sampling loop takes, the model first.
        apart: Whether what is set on it isn't set on the model.
    """
    kind = type(model)
    replaced: dict[str, Any] = {}
    for name, made in methods.items():
        part, _, verb = name.rpartition(".")
        if part:
            inner = stand_in(getattr(model, part), {verb: made})
            replaced[part] = property(functools.partial(_given, inner))
        else:
            replaced[name] = functools.wraps(getattr(kind, name))(made)
    replaced |= {"__module__": kind.__module__} | ({} if sample is None else {"_sample": sample})
    other = cast("PreTrainedModel", object.__new__(type(kind.__name__, (kind,), replaced)))
    object.__setattr__(other, "__dict__", dict(model.__dict__) if apart else model.__dict__)
    return other


def _given(value: Any, host: Any) -> Any:
    return value


def heard(model: PreTrainedModel, name: str, ear: Callable[[str, dict[str, Any], Any], None]) -> Callable[..., Any]:
    """A method of a model's class, whose calls are told, before and after: for `stand_in`.

    Args:
        model: The model.
        name: The method; with a dot, that of a part of the model.
        ear: Takes the name, the arguments by name, and what came of the call; `NOT_YET` before it.
    """
    part, _, verb = name.rpartition(".")
    kind = type(getattr(model, part) if part else model)
    static = isinstance(inspect.getattr_static(kind, verb), staticmethod)
    signature = inspect.signature(getattr(kind, verb))

    def method(host: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        args = args if static else (host, *args)
        given = dict(signature.bind(*args, **kwargs).arguments)
        ear(name, given, NOT_YET)
        made = getattr(kind, verb)(*args, **kwargs)
        ear(name, given, made)
        return made

    return method


NOT_YET = object()


def own_sample(model: PreTrainedModel, host: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """Runs the sampling loop of a model's class on what stands in for the model."""
    return type(model)._sample(host, *args, **kwargs)
