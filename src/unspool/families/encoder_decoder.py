"""Models whose encoder reads the input, and whose decoder starts from an id of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from unspool import bridge
from unspool.families.base import Family

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["EncoderDecoder"]


class EncoderDecoder(Family):
    """Encoder-decoder models: the encoder runs once, one row per prompt."""

    name: ClassVar[str] = "encoder_decoder"
    prefix: ClassVar[str] = "decoder_"

    def start(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The decoder's start id, or the decoder ids that the caller gave."""
        return bridge.decoder_input_ids(model, tensor, name, config, kwargs)
