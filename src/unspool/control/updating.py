"""Other settings from the next step on, for all rows or some."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool import cache as caches
from unspool.endings import Endings
from unspool.errors import ArgumentError, UnsupportedError
from unspool.plan import ModelInputs, Plan
from unspool.rowwise import RowRandom, merged_criteria, merged_processors
from unspool.stages import checks

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["PER_ROW", "build", "per_row", "rebuild", "settle_rows", "update"]

PER_ROW = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "stop_strings")
"""What can differ from row to row."""

_ANY_TIME = (
    *PER_ROW,
    *("typical_p", "top_h", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *(
        "encoder_repetition_penalty",
        "bad_words_ids",
        "sequence_bias",
        "suppress_tokens",
        "min_length",
        "min_new_tokens",
    ),
    *("max_length", "max_time", "eos_token_id", "exponential_decay_length_penalty", "renormalize_logits"),
)
_OF_LENGTH = {"max_new_tokens", "max_length", "min_length", "min_new_tokens"}


def update(state: DecodingState, rows: Sequence[int] | None, settings: Mapping[str, Any]) -> None:
    """Changes settings.

    Raises:
        ArgumentError: A setting is unknown, wrong, or can't differ from row to row.
        UnsupportedError: It can't be changed once the run has begun.
    """
    rest = dict(settings)
    users: dict[str, Any] = {name: rest.pop(name) for name in ("logits_processor", "stopping_criteria") if name in rest}
    _must_be_known(state, rest, users, rows)
    configs = list(state.row_configs or [state.config] * state.ids.shape[0])
    plan = _with_users(state.plan, users)
    if rows is None:
        config = _changed(state, state.config, rest)
        each = None if state.row_configs is None else [_changed(state, its, rest) for its in configs]
    else:
        config, each = state.config, configs
        for row in rows:
            each[row] = _changed(state, configs[row], rest)
        config = _longest(state.config, each)
    rebuild(state, plan, config, each)


def settle_rows(state: DecodingState, given: Mapping[str, Sequence[Any]]) -> list[tuple[int, GenerationConfig]]:
    """Takes up the settings that rows were given at the call; gives the settings of each row.

    Raises:
        ArgumentError: There is not one for each row.
    """
    count = state.ids.shape[0]
    for name, values in given.items():
        if len(values) != count:
            raise ArgumentError(f"{name} is a list of {len(values)}; give one for each of the {count} rows.")
    seeds = given.get("seed")
    if seeds is not None:
        state.generator = RowRandom(seeds, state.ids.device)
    names = [name for name in given if name != "seed"]
    if not names:
        return []
    each = [_changed(state, state.config, {name: given[name][row] for name in names}) for row in range(count)]
    rebuild(state, state.plan, _longest(state.config, each), each)
    return list(enumerate(each))


def per_row(model: Any, kwargs: dict[str, Any], seed: Any) -> tuple[dict[str, Any], Any, dict[str, Sequence[Any]]]:
    """Tells settings for each row from those for all, and from what the model's class takes lists for.

    Returns:
        The keywords and the seed for all rows, and the lists.
    """
    found: dict[str, Sequence[Any]] = {}
    own = bridge.parameters(model.generate) if hasattr(model, "generate") else {}
    for name in PER_ROW:
        value = kwargs.get(name)
        if not isinstance(value, (list, tuple)) or not value or name in own:
            continue
        if name != "stop_strings":
            found[name] = value
        elif any(not isinstance(each, str) for each in value):
            found[name] = [[each] if isinstance(each, str) else each for each in value]
    rest = {name: value for name, value in kwargs.items() if name not in found}
    if "max_new_tokens" in found:
        with checks.wrong_arguments():
            rest["max_new_tokens"] = max(found["max_new_tokens"])
    if "stop_strings" in found:
        every = [text for texts in found["stop_strings"] for text in texts or ()]
        rest["stop_strings"] = every or None
    if isinstance(seed, (list, tuple)):
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in seed):
            raise ArgumentError(f"seed={seed!r}: each must be a number.")
        found["seed"], seed = seed, None
    return rest, seed, found


def rebuild(
    state: DecodingState, plan: Plan, config: GenerationConfig, each: Sequence[GenerationConfig] | None
) -> None:
    """Builds processors and criteria anew, and has the run go on with them."""
    inputs = state.inputs
    assert inputs is not None  # the run goes on
    prompt = ModelInputs(
        input_ids=state.ids[:, : state.prompt_length],
        tensor=inputs.tensor,
        name=inputs.name,
        kwargs=state.carried.kwargs,
        config=config,
        kept=inputs.kept,
        offset=state.length - state.ids.shape[1],
    )
    groups = _groups(each)
    with checks.wrong_arguments():
        lists = [build(plan, prompt, config if each is None else each[rows[0]]) for rows in groups or [[0]]]
    if groups and len(groups) > 1:
        processors = merged_processors(groups, [made for made, _ in lists])
        criteria = merged_criteria(groups, [made for _, made in lists])
    else:
        processors, criteria = lists[0]
    held = state.carried.cache
    if held is not None and (config.max_length or 0) > (state.config.max_length or 0):
        caches.let_grow(held, config.max_length)
    state.plan, state.config, state.row_configs = plan, config, None if each is None else tuple(each)
    state.built = state.processors = processors
    state.endings = Endings(criteria, plan.request.tokenizer)
    if plan.method.rewinds is not None:
        state.memory = {} if plan.method.reads_prompt else state.memory
        state.turn += 1


def build(
    plan: Plan, inputs: ModelInputs, config: GenerationConfig
) -> tuple[LogitsProcessorList, StoppingCriteriaList]:
    """The processors and criteria of a run whose prompt has been read.

    Args:
        plan: The plan.
        inputs: What was read: rows expanded, and masks as long as they have become.
        config: The settings.
    """
    length, name = inputs.input_ids.shape[1], plan.family.prefix + "attention_mask"
    mask = inputs.kwargs.get(name)
    begun = inputs.kwargs if mask is None else {**inputs.kwargs, name: mask[:, : length + inputs.offset]}
    request = plan.request
    processors = bridge.logits_processors(
        plan.model,
        config,
        prompt_length=length,
        encoder_input_ids=inputs.tensor,
        prefix_allowed_tokens_fn=request.prefix_allowed_tokens_fn,
        custom=plan.processors,
        kwargs=begun,
        negative_prompt_ids=request.negative_prompt_ids,
        negative_prompt_attention_mask=request.negative_prompt_attention_mask,
    )
    return processors, bridge.stopping_criteria(plan.model, config, plan.criteria, request.tokenizer)


def _must_be_known(
    state: DecodingState, settings: Mapping[str, Any], users: Mapping[str, Any], rows: Sequence[int] | None
) -> None:
    method = state.plan.method
    if not settings and not users:
        raise ArgumentError("update was given no setting to change.")
    for name in settings:
        if not hasattr(state.config, name):
            raise ArgumentError(f"{name!r} is no setting; {', '.join(_ANY_TIME)} can be changed.")
        if name not in _ANY_TIME:
            raise UnsupportedError(f"{name} can't be changed once a stream has begun; start another one.")
        if rows is not None and name not in PER_ROW:
            raise ArgumentError(f"{name} can't differ from row to row; {', '.join(PER_ROW)} can.")
    if users and rows is not None:
        raise ArgumentError("Processors and criteria of your own see all rows; leave out rows.")
    if method.searches and (rows is not None or _OF_LENGTH & set(settings)):
        raise UnsupportedError(f"{method.name} keeps its rows and lengths; temperature and penalties can be changed.")
    if method.rewinds is None:
        raise UnsupportedError(f"{method.name} keeps the processors that it began with.")
    if any(isinstance(each, bridge.REMEMBERING) for each in state.built):
        raise UnsupportedError("Guidance and SynthID watermarks remember what they saw; their settings stay.")


def _changed(state: DecodingState, config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """A config with other settings, lengths counted with the prompt."""
    made = copy.deepcopy(config)
    with checks.wrong_arguments():
        made.update(**settings)
    for which in ("max", "min"):
        new = settings.get(f"{which}_new_tokens")
        if new is not None:
            if isinstance(new, bool) or not isinstance(new, int) or new < (which == "max"):
                raise ArgumentError(f"{which}_new_tokens={new!r} is no number of tokens.")
            setattr(made, f"{which}_length", state.prompt_length + new)
        elif f"{which}_length" in settings:
            setattr(made, f"{which}_new_tokens", None)
    checks.stop_strings(made, state.plan.request.tokenizer)
    if "eos_token_id" in settings:
        bridge.prepare_special_tokens(state.plan.model, made, True, state.ids.device, state.ids.shape[0])
    return made


def _longest(config: GenerationConfig, each: Iterable[GenerationConfig]) -> GenerationConfig:
    """The config with the most room that a row has."""
    made = copy.copy(config)
    made.max_length = max(its.max_length for its in each)
    return made


def _with_users(plan: Plan, users: Mapping[str, Any]) -> Plan:
    """The plan with other processors and criteria of the caller's."""
    changes: dict[str, Any] = {}
    if "logits_processor" in users:
        changes["processors"] = LogitsProcessorList(users["logits_processor"] or ())
    if "stopping_criteria" in users:
        changes["criteria"] = StoppingCriteriaList(users["stopping_criteria"] or ())
    for name, made in changes.items():
        if any(not callable(each) for each in made):
            raise ArgumentError(f"{name} must be callables; given were {list(made)!r}.")
    return replace(plan, **changes)


def _groups(each: Sequence[GenerationConfig] | None) -> list[list[int]]:
    """The rows with equal settings."""
    groups: list[tuple[dict[str, Any], list[int]]] = []
    for row, config in enumerate(each or ()):
        told = {name: getattr(config, name) for name in (*PER_ROW, "max_length")}
        for known, rows in groups:
            if known == told:
                rows.append(row)
                break
        else:
            groups.append((told, [row]))
    return [rows for _, rows in groups]
