"""Gathers what `generate()` returns."""

from __future__ import annotations

from typing import Any

from transformers.generation import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from unspool import bridge
from unspool.events import Retract
from unspool.records import Event, Opening, Result, Step

__all__ = ["CollectSink"]

_FIELDS = {
    False: {"attentions": "attentions", "hidden_states": "hidden_states"},
    True: {
        "decoder_attentions": "decoder_attentions",
        "cross_attentions": "cross_attentions",
        "decoder_hidden_states": "decoder_hidden_states",
    },
}
_OUTPUTS: dict[tuple[bool, bool], type] = {
    (False, False): GenerateDecoderOnlyOutput,
    (True, False): GenerateEncoderDecoderOutput,
    (False, True): GenerateBeamDecoderOnlyOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}
"""transformers' outputs, by whether there is an encoder and whether there were beams."""


class CollectSink:
    """Keeps of each step what the config asks for, and makes transformers' own output of it.

    Attributes:
        output: After closing: what `model.generate()` would have returned. The ids, or with
            `return_dict_in_generate=True` a `GenerateDecoderOnlyOutput` or `GenerateEncoderDecoderOutput`.
    """

    retracts = True

    def __init__(self) -> None:
        self.output: Any = None
        self._kept: dict[str, list[Any]] = {}

    def open(self, opening: Opening) -> None:
        """Learns from the config what to keep."""
        self._opening = opening
        config = opening.config
        if not config.return_dict_in_generate:
            return
        wanted = {"scores": config.output_scores, "logits": config.output_logits}
        for name in _FIELDS[opening.is_encoder_decoder]:
            wanted[name] = config.output_attentions if "attentions" in name else config.output_hidden_states
        self._kept = {name: [] for name, asked in wanted.items() if asked}

    def take(self, event: Event) -> None:
        """Keeps what is wanted of a step."""
        if isinstance(event, Retract) and event.rows is None:
            for values in self._kept.values():
                del values[event.index :]
        if not isinstance(event, Step):
            return
        for name, values in self._kept.items():
            values.append(getattr(event if name in ("scores", "logits") else event.outputs, name))

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Makes the output."""
        if result is None:
            return
        if result.output is not None:
            self.output = result.output
            return
        if not self._opening.config.return_dict_in_generate:
            self.output = result.sequences
            return
        fields: dict[str, Any] = {name: tuple(values) for name, values in self._kept.items()}
        fields |= {"sequences": result.sequences, bridge.CACHE: result.cache}
        by_beams = result.beam_indices is not None
        if by_beams:
            scores = result.sequences_scores if self._opening.config.output_scores else None
            fields |= {"sequences_scores": scores, "beam_indices": result.beam_indices}
        if self._opening.is_encoder_decoder:
            fields |= self._of_encoder()
        self.output = _OUTPUTS[self._opening.is_encoder_decoder, by_beams](**fields)

    def _of_encoder(self) -> dict[str, Any]:
        config, outputs = self._opening.config, self._opening.encoder_outputs
        wanted = {"attentions": config.output_attentions, "hidden_states": config.output_hidden_states}
        return {f"encoder_{name}": (outputs or {}).get(name) for name, asked in wanted.items() if asked}
