"""Janus: text by the common loop, images as tokens by a loop of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from greenlet import getcurrent
from torch import nn
from transformers import LogitsProcessorList

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.families.alone import AloneLoop, settings
from unspool.families.decoder_only import DecoderOnly
from unspool.records import Finish, FinishReason, PrefillProgress, Step

__all__ = ["Janus"]

_EMBED = "prepare_embeddings_for_image_generation"


class Janus(DecoderOnly):
    """With `generation_mode="image"`, steps are the tokens of an image, row by row from its upper left corner.

    `step.logits` are those with the prompt; `step.scores` have the guidance in them (Chen et al., 2025,
    arXiv:2501.17811).
    """

    name: ClassVar[str] = "janus"
    around_own_loop: ClassVar[bool] = True

    takes_besides: ClassVar[frozenset[str]] = frozenset({"generation_mode", "generation_config"})

    def loop(self, request: Any) -> type[AloneLoop] | None:
        """The loop for images."""
        return _ImageLoop if request.kwargs.get("generation_mode") == "image" else None


class _ImageLoop(AloneLoop):
    method = "image"

    def run(self, given: dict[str, Any]) -> Any:
        """Runs the loop with an ear at what it asks of the model."""
        model: Any = self.model
        ids: Any = given.get("input_ids", given.get("inputs"))
        samples = given.get("num_return_sequences") or 1
        self.begin(ids.repeat_interleave(samples, dim=0), settings(model, given))
        self.ids, self.prompt_length = ids.new_zeros(len(self.finishes), 0), 0
        self._count = model.model.vision_model.config.num_image_tokens
        self._heard: dict[str, Any] = {}
        self._here = getcurrent()
        self.emit(PrefillProgress(0, ids.shape[1]))
        build = getattr(type(model), bridge.PROCESSORS)
        methods: dict[str, Any] = {
            _EMBED: lambda host, tokens: self._take(host, tokens),
            bridge.PROCESSORS: lambda host, **how: _Heard(self._heard, build(host, **how)),
        }
        host = bridge.stand_in(model, methods)
        ear = model.model.language_model.register_forward_hook(self._forward)
        try:
            return host.generate(**given)
        finally:
            ear.remove()

    def _forward(self, module: nn.Module, inputs: Any, made: Any) -> None:
        if getcurrent() is self._here:
            self._heard["outputs"] = made
            if not self.forwards:
                length = made.last_hidden_state.shape[1]
                self.emit(PrefillProgress(length, length))
            self.forwards += 1

    def _take(self, host: Any, tokens: torch.Tensor) -> Any:
        """Makes a step of a token, which the model is about to embed."""
        rows, live = len(self.finishes), self.live()
        new = tokens[:rows, 0].clone()
        self.ids = torch.cat([self.ids, new[:, None]], dim=-1)
        last = self.steps + 1 == self._count
        ended = dict.fromkeys(range(rows), Finish(FinishReason.MAX_LENGTH, self._count)) if last else {}
        for row, finish in ended.items():
            self.finishes[row] = finish
        outputs = self._heard["outputs"]
        outputs_of.drop(outputs, bridge.STATE_NAMES)
        step = Step(
            index=self.steps,
            forward=self.forwards - 1,
            tokens=new,
            live=live,
            logits=self._heard["logits"][:rows].float(),
            scores=self._heard["scores"],
            outputs=outputs,
            positions=range(self.steps, self.steps + 1),
            ended=ended,
        )
        self.steps += 1
        self.emit(step)
        return getattr(type(self.model), _EMBED)(host, tokens)


class _Heard(LogitsProcessorList):
    """Processors whose logits and scores are kept."""

    def __init__(self, heard: dict[str, Any], processors: Any) -> None:
        super().__init__(processors)
        self._heard = heard

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self._heard["logits"] = scores.clone()
        made: torch.Tensor = super().__call__(input_ids, scores, **kwargs)
        self._heard["scores"] = made.clone()
        return made
