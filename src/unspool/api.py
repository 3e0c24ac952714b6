"""The functions that users call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

from unspool import cache as caches
from unspool.control.updating import per_row
from unspool.errors import ArgumentError, UnsupportedError
from unspool.pipeline import Pipeline
from unspool.plan import Request
from unspool.records import Prefilled, PrefillProgress
from unspool.sinks.base import Sink
from unspool.sinks.collect import CollectSink
from unspool.stages import counts
from unspool.stages.decode import decode_nothing
from unspool.state import DecodingState
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from unspool.decoding.registry import DecodingMethod

__all__ = ["generate", "generate_stream", "prefill"]


def generate_stream(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
    synced_gpus: bool | None = None,
    assistant_model: PreTrainedModel | None = None,
    streamer: Any = None,
    negative_prompt_ids: torch.Tensor | None = None,
    negative_prompt_attention_mask: torch.Tensor | None = None,
    custom_generate: str | Callable[..., Any] | None = None,
    *,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    decoding: str | DecodingMethod | None = None,
    seed: int | Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    sinks: Iterable[Sink] = (),
    pipeline: Pipeline | None = None,
    lookahead: int = 1,
    snapshot_every: int | None = None,
    **kwargs: Any,
) -> Stream:
    """Generates step by step: what `model.generate()` does, as an iterator of everything it produces.

    Takes what `model.generate()` takes, under the same names and with the same precedence and defaults, and a
    few arguments more. Arguments are checked here; the model first runs when the first step is asked for.

    Args:
        model: A model of transformers that can generate.
        inputs: The prompt: ids `(batch, length)`, or whatever the model's main input is. May be given by its own
            name instead (`input_ids=`, `inputs_embeds=`, `input_features=` ...).
        generation_config: Settings to start from; keywords win over it, it wins over the model's own.
        logits_processor: Your own processors, placed among transformers' as `generate()` places them.
        stopping_criteria: Your own criteria; each returns a bool, or one for each row.
        prefix_allowed_tokens_fn: Which tokens may follow: `(prompt index, ids so far) -> ids`.
        synced_gpus: Must be false; steps of several processes can't be kept in time.
        assistant_model: A draft model, for assisted decoding.
        streamer: A streamer of transformers; gets the same calls as from `generate()`. Sinks see more.
        negative_prompt_ids: The negative prompt of classifier-free guidance.
        negative_prompt_attention_mask: Its mask.
        custom_generate: For `generate()` only: a decoding loop written for transformers, which is run as it is.
        tokenizer: The model's tokenizer; needed for stop strings, used by `Stream.text` and text sinks.
        assistant_tokenizer: The draft model's tokenizer, if it is another.
        decoding: A decoding method of your own, or the name of a registered one.
        seed: Gives the stream a source of randomness of its own, seeded with this; a list seeds each row apart.
        generator: The same, with a generator of yours.
        sinks: Where events go as well as to whoever iterates.
        pipeline: Stages other than the usual.
        lookahead: With `async for`: how many steps may be made ahead of whoever takes them.
        snapshot_every: After how many steps a copy of everything, cache included, is kept for `Stream.rewind`, where
            caches can't be cut.
        **kwargs: Settings of `GenerationConfig` (`max_new_tokens`, `temperature` ...) and the model's own keywords
            (`attention_mask`, `pixel_values` ...). `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty` and
            `max_new_tokens` may be lists, one for each row, and `stop_strings` a list of lists. A cache may be given as
            `cache` or `past_key_values`; the run takes it over and extends it in place.

    Returns:
        The stream.

    Raises:
        ArgumentError: An argument is wrong or unknown.
        UnsupportedError: The combination can't be run.

    Example:
        >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4)
        >>> tokens = [int(step.tokens[0]) for step in stream]
        >>> len(tokens), stream.result.steps
        (4, 4)
    """
    kwargs.pop("trust_remote_code", None)
    kwargs, one_seed, rows = per_row(model, kwargs, seed)
    request = Request(
        model=model,
        inputs=inputs,
        generation_config=generation_config,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        synced_gpus=synced_gpus,
        assistant_model=assistant_model,
        negative_prompt_ids=negative_prompt_ids,
        negative_prompt_attention_mask=negative_prompt_attention_mask,
        custom_generate=custom_generate,
        tokenizer=tokenizer,
        assistant_tokenizer=assistant_tokenizer,
        decoding=decoding,
        seed=one_seed,
        generator=generator,
        snapshot_every=counts.snapshot_every(snapshot_every),
        per_row=rows,
        whole=any(isinstance(sink, CollectSink) for sink in sinks),
        kwargs=kwargs,
    )
    run = (pipeline or Pipeline()).start(request)
    if streamer is None:
        return Stream(run, sinks, lookahead=lookahead)
    from unspool.legacy import sink_of

    stream = Stream(run, [sink_of(streamer), *sinks], lookahead=lookahead)
    if not request.whole and hasattr(streamer, "bind"):
        streamer.bind(stream)
    return stream


def generate(model: PreTrainedModel, inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Generates to the end: a drop-in for `model.generate()`.

    Args:
        model: A model of transformers that can generate.
        inputs: The prompt.
        *args: As for `generate_stream`.
        **kwargs: As for `generate_stream`.

    Returns:
        What `model.generate()` returns: ids `(rows, length)`, or with `return_dict_in_generate=True` transformers'
        own output object with the same tensors.

    Example:
        >>> generate(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape
        torch.Size([1, 7])
    """
    if kwargs.get("custom_generate") is not None:
        return _custom(model, inputs, args, kwargs)
    collect = CollectSink()
    sinks = [*kwargs.pop("sinks", ()), collect]
    generate_stream(model, inputs, *args, sinks=sinks, **kwargs).to()
    return collect.output


def _custom(model: PreTrainedModel, inputs: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a decoding loop written for transformers."""
    from unspool.custom import run_custom

    for name in ("sinks", "decoding", "seed", "generator", "pipeline"):
        if kwargs.pop(name, None):
            raise ArgumentError(f"{name} has no part in a loop given as custom_generate; leave one of the two out.")
    loop = kwargs.pop("custom_generate")
    names = ("generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "synced_gpus")
    named = dict(zip(names, args, strict=False))
    return run_custom(model, loop, {"inputs": inputs, **named, **kwargs})


def prefill(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    *,
    prefill_chunk_size: int | None = None,
    on_progress: Callable[[PrefillProgress], Any] | None = None,
    **kwargs: Any,
) -> Prefilled:
    """Reads a prompt into a cache, all but its last token, without generating anything.

    The last token is left out because a model only says what comes next when it reads a token: whoever continues
    from the cache gives the whole prompt again, and only what the cache doesn't hold is read.

    Args:
        model: A decoder-only model.
        inputs: The prompt: ids `(batch, length)`. May be given as `input_ids=` or `inputs_embeds=` instead.
        prefill_chunk_size: Read it in chunks of this many tokens.
        on_progress: Called with the progress before the first chunk and after each.
        **kwargs: As for `generate_stream`; a cache given as `cache` is extended.

    Returns:
        The cache and its length.

    Raises:
        ArgumentError: There is no prompt, or an argument is wrong.
        UnsupportedError: The model has an encoder, or no cache.

    Example:
        >>> model, ids = tiny_model(), torch.tensor([[5, 6, 7, 8, 9]])
        >>> ready = prefill(model, ids)
        >>> ready.length
        4
        >>> stream = generate_stream(model, ids, cache=ready.cache, max_new_tokens=2)
        >>> next(stream).positions
        range(4, 5)
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError("prefill is for decoder-only models; of an encoder, keep the `encoder_outputs`.")
    name = "inputs_embeds" if kwargs.get("inputs_embeds") is not None else "input_ids"
    prompt = kwargs.pop(name, None) if inputs is None else inputs
    if prompt is None or prompt.ndim < 2 or prompt.shape[1] < 2:
        raise ArgumentError(f"{name} must hold at least two tokens a row, since all but the last are read.")
    kwargs = {key: _all_but_last(value, prompt.shape[1]) for key, value in kwargs.items()}
    settings = {"max_new_tokens": 1, "prefill_chunk_size": prefill_chunk_size, name: prompt[:, :-1]}
    run = Pipeline(decode=decode_nothing).start(Request(model=model, kwargs={**kwargs, **settings}))
    for event in run.events():
        if on_progress is not None and isinstance(event, PrefillProgress):
            on_progress(event)
    state = run.state
    cache = state.carried.cache if isinstance(state, DecodingState) else None
    if not isinstance(state, DecodingState) or not isinstance(cache, Cache):
        raise UnsupportedError(f"{type(model).__name__} keeps no cache that could be continued from.")
    caches.free_growth(cache)
    state.carried.kept.leave_with(cache)
    return Prefilled(cache, prompt.shape[1] - 1)


def _all_but_last(value: Any, length: int) -> Any:
    along_prompt = isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] >= length
    return value[:, :-1] if along_prompt else value
