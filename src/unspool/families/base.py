"""What a family is, and the one engine of inputs that both templates share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import Cache

from unspool import bridge
from unspool import cache as caches
from unspool.errors import CacheError
from unspool.families.alone import AloneLoop
from unspool.families.carry import Carry
from unspool.families.listener import Listener
from unspool.families.voice import Voice
from unspool.records import Step

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.utils.generic import ModelOutput

    from unspool.plan import Request

__all__ = ["Family"]

_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


class Family:
    """How a kind of model takes its inputs and carries its state.

    A family has no state of its own: what a run carries is in its `Carry`. Subclass `DecoderOnly` or
    `EncoderDecoder` and change what is particular; `register_family` makes it known.
    """

    name: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    """What the decoder's inputs are called by: `""` or `"decoder_"`."""
    step: ClassVar[type[Step]] = Step
    """The record of a step; a subclass can show more of it."""
    around_own_loop: ClassVar[bool] = False
    """Whether the class's own `generate` is run, with ours or its own sampling loop in it."""
    takes_besides: ClassVar[frozenset[str]] = frozenset()
    """What the class's own `generate` takes among its unnamed keywords, where its loop is run alone."""
    keeps_on_model: ClassVar[bool] = False
    """Whether the class's own `generate` keeps the state of a run on the model, where runs would disturb each other."""
    taps: ClassVar[tuple[str, ...]] = ()
    """Methods of the model whose results are kept in `state.heard`, where the class's own sampling loop is run."""
    refuses: ClassVar[frozenset[str]] = frozenset()
    """The decoding methods it doesn't go with."""
    counts_new_tokens: ClassVar[bool] = True
    """Whether `max_new_tokens` and the model's default length count; else only `max_length` does."""

    def loop(self, request: Request) -> type[AloneLoop] | None:
        """What runs the class's own loop, where that shares nothing with the common one."""
        return None

    def listener(self, request: Request) -> Listener:
        """What listens to a run inside the class's own `generate`."""
        return Listener(request)

    def voice(self, model: PreTrainedModel) -> Voice | None:
        """What makes sound of frames, if the model has it."""
        return None

    def gather(
        self, model: PreTrainedModel, inputs: torch.Tensor | None, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor | None, dict[str, Any]]:
        """The main input and the keywords, before anything is made of them."""
        return inputs, kwargs

    def encode(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Runs the encoder, vision or audio tower once; returns the keywords with what it gave."""
        return bridge.encode(model, tensor, name, config, kwargs)

    def start(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The ids that decoding starts from, int64 `(prompts, length)`, and the remaining keywords."""
        raise NotImplementedError

    def guarded(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keywords with a copy of what the encoder gave: some decoders write to it, before rows are repeated."""
        encoded = kwargs.get("encoder_outputs")
        if encoded is None or encoded.get("last_hidden_state") is None:
            return kwargs
        copied = {**encoded, "last_hidden_state": encoded["last_hidden_state"].clone()}
        return {**kwargs, "encoder_outputs": type(encoded)(**copied)}

    def step_inputs(self, model: PreTrainedModel, carry: Carry, ids: torch.Tensor) -> dict[str, Any]:
        """What the next forward takes, after the prompt has been read."""
        if carry.direct and carry.fixed is not None:
            return self._direct_inputs(carry, ids)
        only_new = 1 if carry.kwargs["use_cache"] else None
        return self.inputs(model, carry, ids, next_sequence_length=only_new)

    def inputs(self, model: PreTrainedModel, carry: Carry, ids: torch.Tensor, **how: Any) -> dict[str, Any]:
        """What a forward takes, as the model's own hook has it.

        Args:
            model: The model.
            carry: What the run carries.
            ids: int64 `(rows, length)`.
            **how: `next_sequence_length`: how many of the last positions are still to be read; all, if None.
                `is_first_iteration`: whether this is the prompt.
        """
        made: dict[str, Any] = model.prepare_inputs_for_generation(ids, **how, **carry.kwargs)
        return made

    def logits(self, model: PreTrainedModel, outputs: ModelOutput) -> torch.Tensor:
        """The logits of the next position in a forward's outputs: `(rows, vocab)`."""
        last: torch.Tensor = outputs.logits[:, -1]
        return last

    def absorb(self, model: PreTrainedModel, carry: Carry, outputs: ModelOutput) -> None:
        """Takes up what a forward leaves behind: the cache, longer masks and positions."""
        if not carry.direct:
            carry.kwargs = bridge.update_model_kwargs(model, outputs, carry.kwargs)
            return
        if carry.fixed is None:
            self._fix(carry, outputs)
        key = self.prefix + "attention_mask"
        mask = carry.kwargs.get(key)
        if mask is not None:
            carry.kwargs[key] = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=-1)
        if carry.position is not None:
            carry.position = carry.position + 1

    def take_cache(self, carry: Carry, outputs: ModelOutput) -> None:
        """Takes up the cache that the prompt's forward returned, which a model may have made or wrapped anew."""
        for name in bridge.STATE_NAMES:
            if isinstance(outputs.get(name), Cache):
                carry.kwargs[name] = outputs[name]

    def record(self, model: PreTrainedModel, state: Any, **fields: Any) -> Step:
        """The record of a step that has just been taken.

        Args:
            model: The model.
            state: The state of the run: `state.ids` are its ids, the new ones included.
            **fields: The fields of a `Step`.
        """
        return self.step(**fields)

    def expand(self, model: PreTrainedModel, carry: Carry, ids: torch.Tensor, count: int) -> torch.Tensor:
        """Repeats each row of everything that is carried `count` times; returns the repeated ids."""
        rows = ids.shape[0]
        found = carry.state()
        rest = {k: v for k, v in carry.kwargs.items() if found is None or k != found[0]}
        if found is not None and caches.rows(found[1]) == rows:  # the prompt has been read
            caches.expand(found[1], count, rows)
            rest = {k: v for k, v in rest.items() if k not in bridge.PREFILL_ONLY and k != "inputs_embeds"}
        if rest.get("encoder_outputs") is not None:  # expanded in place, and maybe the caller's
            rest["encoder_outputs"] = type(rest["encoder_outputs"])(**rest["encoder_outputs"])
        ids, rest = bridge.expand_inputs(model, ids, count, rest)
        carry.kwargs = rest if found is None else {**rest, found[0]: found[1]}
        carry.kept.reorder(torch.arange(rows).repeat_interleave(count), rows)
        return ids

    def reorder(self, model: PreTrainedModel, carry: Carry, index: torch.Tensor, shared: int) -> None:
        """Takes the rows of the cache by their index.

        Args:
            model: The model.
            carry: What the run carries.
            index: int64 `(rows,)`: the row that each row becomes.
            shared: Leading positions that are the same in the rows that change places; 0 if they may be of
                different prompts.

        Raises:
            CacheError: The model keeps its state in a form that has no order of rows.
        """
        found = carry.state()
        if found is None:
            return
        name, held = found
        if bridge.reorders_cache_itself(model):
            carry.kwargs[name] = bridge.reorder_cache(model, held, index)
        elif isinstance(held, Cache):
            caches.reorder(held, index, shared, encoder_too=not (model.config.is_encoder_decoder and shared))
        elif hasattr(held, "reorder_cache"):
            held.reorder_cache(index)
        else:
            raise CacheError(f"{type(model).__name__} keeps a state that beams can't reorder; pass use_cache=False.")
        if carry.fixed is not None and name in carry.fixed:
            carry.fixed[name] = carry.kwargs[name]

    def can_expand_later(self, model: PreTrainedModel, carry: Carry, rows: int) -> bool:
        """Whether the `rows` rows of the prompt can be repeated after it has been read, instead of before.

        Not so without a cache, or with one that can't repeat rows, or that the caller has filled with repeated ones;
        nor where reading draws random numbers for each row.
        """
        found = carry.state()
        if not carry.kwargs.get("use_cache") or found is None or bridge.makes_own_cache(model):
            return False
        if bridge.draws_while_reading(model):
            return False
        return caches.can_expand(found[1]) and caches.rows(found[1]) in (0, rows)

    def takes_direct_path(self, model: PreTrainedModel, carry: Carry) -> bool:
        """Whether the inputs of a step are known without asking the model's hooks."""
        own = any(bridge.overrides(model, hook) for hook in _INPUT_HOOKS)
        own |= any(getattr(type(self), verb) is not getattr(Family, verb) for verb in ("inputs", "absorb"))
        held = carry.cache
        simple = isinstance(held, Cache) and not held.is_compileable and bool(carry.kwargs.get("use_cache"))
        known = {self.prefix + "attention_mask", self.prefix + "position_ids", "attention_mask", "inputs_embeds"}
        known |= set() if self.prefix else set(_TOKEN_TYPES)
        others = (v for k, v in carry.kwargs.items() if k not in known)
        plain = not any(isinstance(value, torch.Tensor) for value in others)
        return simple and plain and not own and not model.is_remote_code()

    def _fix(self, carry: Carry, outputs: ModelOutput) -> None:
        """Settles what stays the same at every direct step, once the prompt has been read."""
        if bridge.CACHE in outputs and outputs[bridge.CACHE] is not None:
            carry.kwargs[bridge.CACHE] = outputs[bridge.CACHE]
        moving = {self.prefix + "attention_mask", self.prefix + "position_ids", "inputs_embeds", "labels"}
        moving |= set(bridge.PREFILL_ONLY)
        fixed = {k: v for k, v in carry.kwargs.items() if k not in moving and v is not None}
        for key in _TOKEN_TYPES:
            if key in fixed and not self.prefix:
                last = fixed[key][..., -1:].clone()
                fixed[key] = torch.zeros_like(last) if key == "mm_token_type_ids" else last
        carry.fixed = fixed
        positions = carry.kwargs.pop(self.prefix + "position_ids", None)
        carry.position = None if positions is None else positions[..., -1:].clone()

    def _direct_inputs(self, carry: Carry, ids: torch.Tensor) -> dict[str, Any]:
        inputs = dict(carry.fixed or {})
        inputs[self.prefix + "input_ids"] = ids[:, -1:].contiguous()
        mask = carry.kwargs.get(self.prefix + "attention_mask")
        if mask is not None:
            inputs[self.prefix + "attention_mask"] = mask
        if carry.position is not None:
            inputs[self.prefix + "position_ids"] = carry.position
        return inputs


_INPUT_HOOKS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
