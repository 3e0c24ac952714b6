"""Streams that go on from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer

from unspool import afresh, bridge
from unspool import cache as caches
from unspool.cache_files import fill, fingerprint, kind_of
from unspool.control.saving import COUNTS, FORMAT, seal
from unspool.control.timeline import Timeline, source_of
from unspool.control.updating import build, rebuild
from unspool.decoding.registry import find_method
from unspool.errors import ArgumentError, CacheError
from unspool.families.carry import Carry
from unspool.families.registry import particular_family, template_of
from unspool.forcing import Forced
from unspool.kept import KeptState
from unspool.packing import unpacked
from unspool.pipeline import Run
from unspool.plan import Constraints, ModelInputs, Plan, Request
from unspool.stages import checks, counts
from unspool.stages.constraints import keeps_scores, pad_token
from unspool.state import DecodingState
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from unspool.fanout import AnySink

__all__ = ["resume"]

_FOREIGN = ("compile_config", "watermarking_config", "assistant_model", "custom_generate")


def resume(
    model: PreTrainedModel,
    path: str | Path,
    *,
    tokenizer: Any = None,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    prefix_allowed_tokens_fn: Any = None,
    assistant_model: PreTrainedModel | None = None,
    sinks: Iterable[AnySink] = (),
    lookahead: int = 1,
    snapshot_every: int | None = None,
) -> Stream:
    """Goes on with a stream that was saved with `Stream.save`.

    Nothing in the file is ever executed, and no more is allocated than the file holds.

    Args:
        model: The model that the stream was of.
        path: The file.
        tokenizer: As for `generate_stream`, like the others; needed if the stream has stop strings.
        logits_processor: Your own processors, if the stream had some.
        stopping_criteria: Your own criteria, if it had some.
        prefix_allowed_tokens_fn: As given to the stream.
        assistant_model: As given to the stream.
        sinks: As for `generate_stream`.
        lookahead: As for `generate_stream`.
        snapshot_every: As for `generate_stream`.

    Returns:
        The stream. Its next step is the one after the last that was made before it was saved.

    Raises:
        CacheError: The file is none of these, damaged, changed, or of another model or version.
        ArgumentError: Something that the stream had is not given.

    Example:
        See `Stream.save`.
    """
    header, tensors = _read(path, model)
    request = Request(
        model=model,
        tokenizer=tokenizer,
        logits_processor=list(logits_processor),
        stopping_criteria=list(stopping_criteria),
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        assistant_model=assistant_model,
        snapshot_every=counts.snapshot_every(snapshot_every),
    )
    named = [type(each).__name__ for each in (*logits_processor, *stopping_criteria)]
    if named != header["users"]:
        raise ArgumentError(f"The stream had the processors and criteria {header['users']}; given were {named}.")
    try:
        state, inputs = _state(request, header, tensors)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise CacheError(f"{path} is damaged: {error!r}") from error
    return Stream(Run.resumed(state, inputs), sinks, lookahead=lookahead)


def _read(path: str | Path, model: PreTrainedModel) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {}).get("unspool", "null"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise CacheError(f"{path} holds no stream that this version of unspool wrote.")
            if header.get("model") != fingerprint(model):
                raise CacheError(f"{path} holds a stream of another model than this {type(model).__name__}.")
            if header.get("transformers") != bridge.MAJOR_VERSION:
                raise CacheError(f"{path} was written with transformers {header.get('transformers')}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CacheError(f"{path} is damaged, or holds no stream: {error}") from error
    except FileNotFoundError as error:
        raise CacheError(f"There is no file {path}.") from error
    if header.pop("digest", None) != seal(header, tensors):
        raise CacheError(f"{path} was changed: it isn't what was written.")
    return header, tensors


@torch.inference_mode(False)
@torch.no_grad()
def _state(
    request: Request, header: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[DecodingState, ModelInputs]:
    model = request.model
    here = {name: tensor.to(model.device) for name, tensor in tensors.items()}
    told = unpacked(header["fields"], here)
    config = _config(request, header["config"], told["ids"].shape[0])
    plan = _plan(request, config, header["method"])
    cache = _cache(model, header["cache"], here)
    carry = _carry(plan, told, header["cache"], cache)
    ids, length = _checked_ids(told, model), int(told["counts"]["prompt_length"])
    tensor = told["tensor"] if told["tensor"] is not None else ids[:, :length]
    inputs = ModelInputs(
        input_ids=ids[:, :length],
        tensor=tensor,
        name="input_ids",
        kwargs=carry.kwargs,
        config=config,
        kept=carry.kept,
        offset=int(told["offset"]),
    )
    state = DecodingState(plan, inputs, _constraints(plan, inputs, told), carry)
    _fill_books(state, told, ids)
    if header["rows"] is not None:
        rebuild(state, plan, config, [_config(request, each, ids.shape[0]) for each in header["rows"]])
    return state, inputs


def _config(request: Request, told: dict[str, Any], rows: int) -> GenerationConfig:
    config = GenerationConfig.from_dict({name: value for name, value in told.items() if name not in _FOREIGN})
    checks.stop_strings(config, request.tokenizer)
    bridge.prepare_special_tokens(request.model, config, True, request.model.device, rows)
    return config


def _checked_ids(told: dict[str, Any], model: PreTrainedModel) -> torch.Tensor:
    ids, live = told["ids"], told["live"]
    size = model.get_input_embeddings().weight.shape[0]
    if ids.dtype != torch.int64 or ids.ndim != 2 or live.dtype != torch.bool:
        raise ValueError(f"ids are {ids.dtype}, {tuple(ids.shape)}")
    if bool((ids >= size).any()) or bool((ids < 0).any()):
        raise ValueError("an id is not in the model's vocabulary")
    if live.shape != ids.shape[:1] or len(told["finishes"]) not in (ids.shape[0],):
        raise ValueError("rows are missing")
    made: torch.Tensor = ids
    return made


def _plan(request: Request, config: GenerationConfig, method: str) -> Plan:
    return Plan(
        request=request,
        model=request.model,
        config=config,
        method=find_method(method),
        family=particular_family(request.model) or template_of(request.model),
        model_kwargs={},
        processors=LogitsProcessorList(request.logits_processor or ()),
        criteria=StoppingCriteriaList(request.stopping_criteria or ()),
        rows_per_prompt=max(config.num_beams or 1, config.num_return_sequences or 1),
        expanded=True,
        default_max_length=False,
        default_min_length=False,
        returns_cache=bool(config.return_dict_in_generate),
    )


def _cache(model: PreTrainedModel, told: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> Cache | None:
    if told is None:
        return None
    if "cross" in told:
        text = model.config.get_text_config(decoder=True)
        own = _filled(DynamicCache(config=text), told["self"], "cache.self", tensors)
        pair = EncoderDecoderCache(own, _filled(DynamicCache(), told["cross"], "cache.cross", tensors))
        pair.is_updated = {number: bool(flag) for number, flag in enumerate(told["updated"])}
        return pair
    cache = _filled(DynamicCache(config=model.config), told["self"], "cache.self", tensors)
    caches.note_read(cache, int(told["read"]))
    return cache


def _filled(
    cache: DynamicCache, layers: list[dict[str, Any]], prefix: str, tensors: dict[str, torch.Tensor]
) -> DynamicCache:
    """A cache with what its layers held, each of the kind that the model has there."""
    for place, told in enumerate(layers):
        if place == len(cache.layers):
            cache.layers.append(DynamicLayer())
        layer = cache.layers[place]
        if told["kind"] != kind_of(layer):
            raise ValueError(f"layer {place} is a {told['kind']}, where the model has a {kind_of(layer)}")
        start = f"{prefix}.{place}."
        mine = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        fill(layer, {**told["plain"], **mine})
    made: DynamicCache = caches.copied(cache, 0)  # with layers that grow in place
    return made


def _carry(plan: Plan, told: dict[str, Any], place: dict[str, Any] | None, cache: Cache | None) -> Carry:
    kept = KeptState(plan.model)
    kept.hold(told["kept"])
    kwargs, fixed = dict(told["kwargs"]), told["fixed"]
    if place is not None:
        if place["name"] not in bridge.STATE_NAMES:
            raise ValueError(f"{place['name']!r} is no cache")
        kwargs[place["name"]] = cache
        fixed = None if fixed is None else {**fixed, place["name"]: cache}
    return Carry(
        kwargs=kwargs, kept=kept, call=plan.model, direct=bool(told["direct"]), fixed=fixed, position=told["position"]
    )


def _constraints(plan: Plan, inputs: ModelInputs, told: dict[str, Any]) -> Constraints:
    afresh.begin(plan.processors)
    processors, criteria = build(plan, inputs, inputs.config)
    generator = None
    if told["random"] is not None:
        generator = source_of(told["random"].cpu(), inputs.input_ids.device)
    return Constraints(
        processors=processors,
        criteria=criteria,
        pad_token=pad_token(inputs),
        generator=generator,  # type: ignore[arg-type]
        keeps_scores=keeps_scores(inputs.config, criteria),
    )


def _fill_books(state: DecodingState, told: dict[str, Any], ids: torch.Tensor) -> None:
    for name in COUNTS:
        setattr(state, name, told["counts"][name])
    state.ids, state.live, state.finishes = ids, told["live"], tuple(told["finishes"])
    state.stopped = {int(row): finish for row, finish in told["stopped"].items()}
    state.forced = Forced({int(row): tuple(map(int, tokens)) for row, tokens in told["forced"].items()})
    state.history = told["history"]
    if told["ready"] is not None:
        output = unpacked({"output": told["ready_kind"], "items": {}}, {})
        state.give_ready(type(output)(**told["ready"]))
    state.timeline = Timeline(state.plan.request.snapshot_every)
    if told["search"] is not None and state.plan.method.searches is not None:
        make = state.plan.method.searches
        state.recall("search", lambda: make(state)).load(told["search"])
