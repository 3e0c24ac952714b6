"""The records that the stages hand on: what was asked, what will be done, and what it will be done with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from unspool.control.interventions import Interventions
from unspool.records import Opening

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from unspool.decoding.registry import DecodingMethod, Method
    from unspool.families.base import Family
    from unspool.kept import KeptState

__all__ = ["Constraints", "ModelInputs", "Plan", "Request", "open_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller asked for, as it was asked: the arguments of `generate_stream`."""

    model: PreTrainedModel
    inputs: torch.Tensor | None = None
    generation_config: GenerationConfig | None = None
    logits_processor: Sequence[Any] | None = None
    stopping_criteria: Sequence[Any] | None = None
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None
    synced_gpus: bool | None = None
    assistant_model: PreTrainedModel | None = None
    negative_prompt_ids: torch.Tensor | None = None
    negative_prompt_attention_mask: torch.Tensor | None = None
    custom_generate: str | Callable[..., Any] | None = None
    tokenizer: Any = None
    assistant_tokenizer: Any = None
    decoding: str | DecodingMethod | None = None
    seed: int | None = None
    generator: torch.Generator | None = None
    snapshot_every: int | None = None
    per_row: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    interventions: Interventions = field(default_factory=Interventions)
    whole: bool = False
    """Whether only the result is wanted, in transformers' form, as by `generate()`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be done. Made by `configure`; holds no tensor of the run's own, and may be used again.

    Attributes:
        request: What was asked.
        model: The model.
        config: The generation config by transformers' precedence: the call's keywords over the config that was
            given over the model's own over the defaults. Stages that settle values in it work on a copy.
        method: The decoding method.
        family: The model's family.
        model_kwargs: The keywords that are the model's.
        processors: The caller's logits processors.
        criteria: The caller's stopping criteria.
        rows_per_prompt: Sequences generated for each prompt.
        default_max_length: Whether no maximum length was asked for.
        default_min_length: Whether no minimum length was asked for.
        returns_cache: Whether the result holds the cache.
        expanded: Whether the inputs have one row per sequence already, instead of one per prompt.
        own_loop: Whether the model's class has a loop of its own, which is run as it is around ours.
    """

    request: Request
    model: PreTrainedModel
    config: GenerationConfig
    method: Method
    family: Family
    model_kwargs: Mapping[str, Any]
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    rows_per_prompt: int
    default_max_length: bool
    default_min_length: bool
    returns_cache: bool
    expanded: bool = False
    own_loop: bool = False

    @property
    def rolls_back(self) -> bool:
        """Whether tokens are taken back, so that caches must keep what they would drop."""
        return self.method.rolls_back or bool(self.config.low_memory)

    @property
    def unasked(self) -> tuple[str, ...]:
        """The fields of the model's output that the method reads, but the caller didn't ask to see."""
        hidden = self.method.hidden_states is not None and not self.config.output_hidden_states
        return (self.family.prefix + "hidden_states",) if hidden else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """What the model will read. Made by `inputs`; one row per prompt.

    Attributes:
        input_ids: int64 `(prompts, length)`: what decoding continues from; for encoder-decoder models the
            decoder's first ids.
        tensor: The main input of the model: ids, embeddings, sound or pixels.
        name: The name of that input.
        kwargs: The model's keywords: masks, positions, encoder outputs, cache.
        config: The generation config, with lengths and special tokens settled for this input.
        offset: Positions before `input_ids` that are not in it: embeddings, or a past that only the cache holds.
        reused: Positions that the caller's cache holds already.
        only_last: How many of the last positions to read, when the cache holds those before; None for all.
        kept: What the model keeps on itself.
    """

    input_ids: torch.Tensor
    tensor: torch.Tensor
    name: str
    kwargs: dict[str, Any]
    config: GenerationConfig
    kept: KeptState
    offset: int = 0
    reused: int = 0
    only_last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What shapes and ends the output. Made by `constraints`; fresh for every run.

    Attributes:
        processors: The logits processors, in order.
        criteria: The stopping criteria, in order.
        pad_token: The id that ended rows hold: int64, no dimensions; None if there is none.
        generator: The run's own source of randomness; None for torch's global one.
        keeps_scores: Whether the scores of all steps are kept, for a criterion that reads them.
    """

    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    pad_token: torch.Tensor | None = None
    generator: torch.Generator | None = None
    keeps_scores: bool = False


def open_run(plan: Plan, inputs: ModelInputs, began: float) -> Opening:
    """What sinks are told of a run before its first event."""
    ids = inputs.input_ids
    return Opening(
        prompt_ids=ids if plan.expanded else ids.repeat_interleave(plan.rows_per_prompt, dim=0),
        rows_per_prompt=plan.rows_per_prompt,
        config=inputs.config,
        tokenizer=plan.request.tokenizer,
        encoder_outputs=inputs.kwargs.get("encoder_outputs"),
        is_encoder_decoder=bool(plan.model.config.is_encoder_decoder),
        method=plan.method.name,
        began=began,
    )
