"""Models that continue the ids they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from unspool.families.base import Family

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel

__all__ = ["DecoderOnly"]


class DecoderOnly(Family):
    """Decoder-only models, with or without images, sound or embeddings beside the ids."""

    name: ClassVar[str] = "decoder_only"

    def start(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The prompt itself."""
        if name == "input_ids":
            return tensor, kwargs
        rest = dict(kwargs)
        return rest.pop("input_ids"), rest
