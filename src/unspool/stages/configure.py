"""Stage 1: settles what will be done, and refuses what can't be."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool.decoding.registry import Method, find_method
from unspool.errors import ArgumentError, UnsupportedError
from unspool.families.parts import generating_part, generating_part_name
from unspool.families.refused import refusal
from unspool.families.registry import family_of, particular_family, registered_family
from unspool.plan import Plan, Request
from unspool.stages import checks, former_checks, prompt_checks
from unspool.stages.alone import settle_alone

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["configure", "configure_as", "settle"]


def configure(request: Request) -> Generator[Any, Any, Plan]:
    """Settles config, decoding method and family, and checks every argument that can be checked before running.

    Yields nothing: it runs to its end when the stream is made, so that wrong arguments raise at the call.

    Raises:
        ArgumentError: An argument is wrong.
        UnsupportedError: The combination can't be run.
    """
    plan = settle(request)
    _check_inputs(plan)
    return plan
    yield  # makes this a generator, as every stage is


def configure_as(plan: Plan) -> Callable[[Request], Generator[Any, Any, Plan]]:
    """The same stage for requests that differ from an earlier plan's in their inputs only: nothing is settled again.

    Args:
        plan: What was settled. Its settings must be those of the requests, too.
    """

    def again(request: Request) -> Generator[Any, Any, Plan]:
        inputs = _named_cache(plan.model, {k: v for k, v in request.kwargs.items() if not hasattr(plan.config, k)})
        held = inputs.get(bridge.cache_name(plan.model)) is not None
        fresh = replace(
            plan, request=request, model_kwargs=inputs, returns_cache=bool(plan.config.return_dict_in_generate) or held
        )
        checks.randomness(request.seed, request.generator)
        _check_inputs(fresh)
        return fresh
        yield

    return again


def settle(request: Request) -> Plan:
    """What will be done, from all that doesn't depend on the prompt.

    Raises:
        ArgumentError: An argument is wrong.
        UnsupportedError: The combination can't be run.
    """
    _refuse_kind(request.model)
    alone = particular_family(request.model)
    if alone is not None and alone.loop(request) is not None:
        checks.randomness(request.seed, request.generator)
        return settle_alone(request, alone)
    model = generating_part(request.model)
    checks.can_generate(model)
    kwargs = _named_cache(model, request.kwargs)
    defaults = _defaults(model, request.generation_config, kwargs)
    with checks.wrong_arguments():
        config, model_kwargs = bridge.generation_config(
            model, request.generation_config, kwargs, streams=not request.whole
        )
    own_loop = _has_own_loop(request.model)
    if own_loop and request.per_row:
        raise ArgumentError(
            f"{', '.join(request.per_row)}: {type(request.model).__name__} generates with a loop of its own, which has "
            f"one value for all rows."
        )
    method, family = _method(request, config), family_of(model)
    _refuse_unsupported(request, config)
    checks.goes_with(model, family, method.name)
    checks.lengths(model, family, config)
    checks.beams(config, method.name)
    checks.rows_stay(config, (*(request.logits_processor or ()), *(request.stopping_criteria or ())))
    checks.randomness(request.seed, request.generator)
    checks.stop_strings(config, request.tokenizer)
    checks.attentions(model, config, drop_in=request.whole)
    if not own_loop:  # a loop of the model's own takes what its class says
        _validate_mode(request, config)
        checks.processors(model, config)
    return Plan(
        request=request,
        model=model,
        config=config,
        method=method,
        family=family,
        model_kwargs=model_kwargs,
        processors=LogitsProcessorList(request.logits_processor or ()),
        criteria=StoppingCriteriaList(request.stopping_criteria or ()),
        rows_per_prompt=max(config.num_beams or 1, config.num_return_sequences or 1),
        default_max_length=defaults["max_length"],
        default_min_length=defaults["min_length"],
        returns_cache=bool(config.return_dict_in_generate) or model_kwargs.get(bridge.cache_name(model)) is not None,
        own_loop=own_loop,
    )


def _check_inputs(plan: Plan) -> None:
    """The prompt and what comes with it can be read, and go with what has been settled."""
    request, model, config, kwargs = plan.request, plan.model, plan.config, plan.model_kwargs
    default_length = plan.default_max_length
    if plan.own_loop and plan.family.loop(request) is not None:
        return
    former_checks.check(plan.method.name, model, config, request.inputs, kwargs, default_length)
    if plan.own_loop:
        return
    checks.known_names(model, kwargs)
    if plan.method.rolls_back:
        checks.assisted(model, request.inputs, kwargs, config, drafts=request.assistant_model is not None)
    prompt_checks.prompt(model, request.inputs, kwargs, config, default_length)
    checks.caching(config, kwargs.get(bridge.cache_name(model)))


def _defaults(model: PreTrainedModel, given: GenerationConfig | None, kwargs: Mapping[str, Any]) -> dict[str, bool]:
    """Which lengths nobody has asked for."""
    sources = (given, model.generation_config)
    return {
        which: kwargs.get(which) is None and all(getattr(source, which, None) is None for source in sources)
        for which in ("max_length", "min_length")
    }


def _named_cache(model: PreTrainedModel, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords with the cache under the name that the model takes, whatever name it was given by."""
    renamed = {name: value for name, value in kwargs.items() if name not in bridge.CACHE_NAMES}
    given = {name: kwargs[name] for name in bridge.CACHE_NAMES if kwargs.get(name) is not None}
    if len(given) > 1:
        raise ArgumentError(f"A cache was given more than once, as {' and '.join(given)}. Give it as `cache` only.")
    for value in given.values():
        renamed[bridge.cache_name(model)] = value
    return renamed


def _has_own_loop(model: PreTrainedModel) -> bool:
    """Whether to run the class's own `generate` around our loop.

    Raises:
        UnsupportedError: It has one, and our loop can't be put into it.
    """
    family, whole = particular_family(model), generating_part_name(model) is None
    if whole and ((family is not None and not family.around_own_loop) or not bridge.has_own_generate(model)):
        return False
    from unspool.own_loop import can_suspend  # on a higher floor; asked only of these models

    if not can_suspend(model):
        raise UnsupportedError(
            f"{type(model).__name__} has a generation loop of its own, which can't be streamed yet. "
            f"Use `model.generate(...)`, or teach unspool the model with `unspool.register_family`."
        )
    return True


def _refuse_kind(model: PreTrainedModel) -> None:
    reason = refusal(model)
    if reason is not None and registered_family(model) is None:
        raise UnsupportedError(reason)


def _validate_mode(request: Request, config: GenerationConfig) -> None:
    given = {
        "assistant_model": request.assistant_model,
        "tokenizer": request.tokenizer,
        "assistant_tokenizer": request.assistant_tokenizer,
    }
    named = {name: value for name, value in given.items() if value is not None}
    with checks.wrong_arguments():
        bridge.validate_mode(request.model, config, request.assistant_model, named)


def _method(request: Request, config: GenerationConfig) -> Method:
    mode = bridge.mode(config, request.assistant_model)
    return find_method(mode if request.decoding is None else request.decoding)


def _refuse_unsupported(request: Request, config: GenerationConfig) -> None:
    if request.custom_generate is not None:
        raise UnsupportedError(
            "custom_generate replaces the loop that would be streamed. Run it with unspool.generate(), "
            "or write it as a decoding method and pass that as `decoding=`."
        )
    if request.synced_gpus:
        raise UnsupportedError("synced_gpus=True can't be streamed: rows of other processes would have to step along.")
    if config.cache_implementation == "paged":
        raise UnsupportedError("cache_implementation='paged' means continuous batching; use `model.generate_batch`.")
