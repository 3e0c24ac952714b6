"""Which family a model belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unspool.families.bark import Bark
from unspool.families.base import Family
from unspool.families.decoder_only import DecoderOnly
from unspool.families.diffusion import BlockDiffusion
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.families.frames import CodebookFrames, DelayedFrames, DelayedFramesFromText, LatentFrames
from unspool.families.janus import Janus
from unspool.families.rag import RagToken
from unspool.families.spectrogram import Spectrogram
from unspool.families.transducer import Transducer
from unspool.families.whisper import Whisper

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["family_of", "register_family"]

_registered: list[tuple[Callable[[PreTrainedModel], bool], Family]] = []
_ENCODER_DECODER = EncoderDecoder()
_DECODER_ONLY = DecoderOnly()
_PARTICULAR: dict[str, Family] = {
    "BarkModel": Bark(),
    "CsmForConditionalGeneration": CodebookFrames(),
    "JanusForConditionalGeneration": Janus(),
    "MusicgenForCausalLM": DelayedFrames(),
    "MusicgenForConditionalGeneration": DelayedFramesFromText(),
    "MusicgenMelodyForCausalLM": DelayedFrames(),
    "MusicgenMelodyForConditionalGeneration": DelayedFramesFromText(),
    "Nemotron3_5AsrForRNNT": Transducer(),
    "NemotronAsrStreamingForRNNT": Transducer(),
    "ParakeetForRNNT": Transducer(),
    "ParakeetForTDT": Transducer(),
    "PocketTTSForConditionalGeneration": LatentFrames(),
    "GradiumPhononTTSForConditionalGeneration": LatentFrames(),
    "DiffusionGemmaForBlockDiffusion": BlockDiffusion(),
    "RagTokenForGeneration": RagToken(),
    "SpeechT5ForTextToSpeech": Spectrogram(),
    "WhisperForConditionalGeneration": Whisper(),
}


def register_family(matches: Callable[[PreTrainedModel], bool], family: Family) -> Callable[[], None]:
    """Makes a family known. The newest one that matches a model is used.

    Args:
        matches: Says whether a model belongs to the family.
        family: The family.

    Returns:
        A function that takes the registration back.

    Example:
        >>> class Mine(DecoderOnly):
        ...     name = "mine"
        >>> forget = register_family(lambda model: type(model).__name__ == "MyModel", Mine())
        >>> forget()
    """
    entry = (matches, family)
    _registered.append(entry)

    def forget() -> None:
        if entry in _registered:
            _registered.remove(entry)

    return forget


def registered_family(model: PreTrainedModel) -> Family | None:
    """The family that someone registered for this model, if any."""
    return next((family for matches, family in reversed(_registered) if matches(model)), None)


def particular_family(model: PreTrainedModel) -> Family | None:
    """The family of a model that is more than a template: a registered one, or one for its class or one it extends."""
    names = (kind.__name__ for kind in type(model).__mro__)
    return registered_family(model) or next((_PARTICULAR[name] for name in names if name in _PARTICULAR), None)


def template_of(model: PreTrainedModel) -> Family:
    """The template that fits a model's config."""
    return _ENCODER_DECODER if model.config.is_encoder_decoder else _DECODER_ONLY


def family_of(model: PreTrainedModel) -> Family:
    """The family of a model: a registered one, one for its class, or the template that fits its config."""
    return particular_family(model) or template_of(model)
