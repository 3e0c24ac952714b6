"""A model with its settings, configured once and streamed from many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from unspool.api import generate, generate_stream
from unspool.errors import ArgumentError
from unspool.pipeline import Pipeline
from unspool.plan import Plan, Request
from unspool.stages import checks
from unspool.stages.configure import configure_as, settle
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Generator"]

_OF_A_REQUEST = (
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "synced_gpus",
    "assistant_model",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "tokenizer",
    "assistant_tokenizer",
    "decoding",
)
_OF_A_CALL = ("seed", "generator", "sinks", "lookahead")


class Generator:
    """A model and settings for it. They are settled and checked here, once; streams begin at what differs.

    The settings are read when the object is made: what is changed on the model's own `generation_config` later
    doesn't reach it. Any number of streams can be under way at the same time.

    Args:
        model: A model of transformers that can generate.
        **defaults: What `generate_stream` takes and all streams share: settings of `GenerationConfig`, `tokenizer`,
            `logits_processor`, `decoding` ...

    Raises:
        ArgumentError: A setting is wrong, or belongs to a single call.
        UnsupportedError: The combination can't be run.

    Example:
        >>> generator = Generator(tiny_model(), max_new_tokens=4)
        >>> prompts = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
        >>> [generator.generate(prompt).shape[1] for prompt in prompts]
        [7, 6]
    """

    def __init__(self, model: PreTrainedModel, **defaults: Any) -> None:
        wrong = [name for name in (*_OF_A_CALL, "inputs", "streamer", "pipeline") if name in defaults]
        if wrong or any(isinstance(value, torch.Tensor) for value in defaults.values()):
            raise ArgumentError(
                f"{', '.join(wrong) or 'A tensor'} belongs to one stream; give it to stream(), not to Generator()."
            )
        self.model, self._defaults = model, defaults
        self._plan = self._settled()
        self._pipeline = Pipeline(configure=configure_as(self._plan))

    def _settled(self) -> Plan:
        named = {name: value for name, value in self._defaults.items() if name in _OF_A_REQUEST}
        settings = {name: value for name, value in self._defaults.items() if name not in _OF_A_REQUEST}
        plan = settle(Request(model=self.model, kwargs=settings, **named))
        if not plan.own_loop:
            checks.known_names(plan.model, plan.model_kwargs)
        return plan

    def stream(self, inputs: torch.Tensor | None = None, **kwargs: Any) -> Stream:
        """A new stream.

        Args:
            inputs: The prompt, as for `generate_stream`.
            **kwargs: The model's other inputs, and `seed`, `generator`, `sinks`, `lookahead`. Settings may be given,
                too; they win over those of the object, and everything is settled anew for this one stream.

        Returns:
            The stream, as from `generate_stream`.

        Raises:
            ArgumentError: An argument is wrong.
        """
        return generate_stream(self.model, inputs, **self._merged(kwargs))

    def generate(self, inputs: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """What `generate` returns, for the same arguments as those of `stream`."""
        return generate(self.model, inputs, **self._merged(kwargs))

    def _merged(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        settled = (*_OF_A_REQUEST, "streamer", "pipeline", "custom_generate")
        anew = any(name in settled or hasattr(self._plan.config, name) for name in kwargs)
        if anew or self._plan.own_loop:
            return {**self._defaults, **kwargs}
        return {**self._defaults, **kwargs, "pipeline": self._pipeline}
