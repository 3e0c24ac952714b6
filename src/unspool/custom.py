"""Two doors between unspool and transformers' `custom_generate`.

Out: `model.generate(..., custom_generate=unspool.custom_generate)` returns a `Stream` from inside transformers.
In: decoding loops written for transformers run through `unspool.generate(..., custom_generate=loop)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool.ambient import without_gradients
from unspool.pipeline import Pipeline
from unspool.plan import Request
from unspool.prepared import prepare
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["custom_generate", "run_custom"]


class _CustomGenerate:
    """A decoding loop for transformers' `custom_generate` that returns a `Stream`.

    transformers prepares inputs, cache, processors and criteria as for any other loop. It doesn't hand its
    tokenizer and assistant on to loops of others; this one gets them all the same.

    Example:
        >>> from unspool import custom_generate
        >>> stream = tiny_model().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, custom_generate=custom_generate)
        >>> len([step.tokens for step in stream])
        3
    """

    __name__ = "custom_generate"

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        tokenizer: Any = None,
        assistant_model: PreTrainedModel | None = None,
        assistant_tokenizer: Any = None,
        inputs_tensor: torch.Tensor | None = None,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Stream:
        """The stream of a run that begins from what transformers has prepared."""
        request = Request(
            model=model,
            tokenizer=tokenizer,
            assistant_model=assistant_model,
            assistant_tokenizer=assistant_tokenizer,
        )
        made = prepare(
            request,
            model=model,
            input_ids=input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            inputs_tensor=inputs_tensor,
            model_kwargs=model_kwargs,
        )
        sinks = []
        if streamer is not None:
            from unspool.legacy import sink_of

            sinks.append(sink_of(streamer, prompt=False))  # transformers has put the prompt itself
        return Stream(Pipeline().replace(**made.stages()).start(request), sinks)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature that transformers asks for while it still holds what it won't hand on."""
        bridge.hand_on_to_loop()
        return inspect.signature(type(self).__call__).replace(
            parameters=list(inspect.signature(type(self).__call__).parameters.values())[1:]
        )


custom_generate = _CustomGenerate()


def run_custom(model: PreTrainedModel, loop: str | Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Runs a decoding loop written for transformers, by way of transformers' own `generate`.

    Returns:
        What the loop returns. If it is a generator function, its generator, which runs with gradients off.
    """
    made = model.generate(**arguments, custom_generate=loop)
    return _driven(made) if inspect.isgenerator(made) else made


@without_gradients
def _driven(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from generator)
