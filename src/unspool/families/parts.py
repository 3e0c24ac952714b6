"""Models that generate by a part of theirs, which is a model of its own."""

from __future__ import annotations

from typing import Any

__all__ = ["first_phase", "generating_part", "generating_part_name", "handed_parts"]

_PARTS = {"RagSequenceForGeneration": "generator"}
_HANDED = {
    "ClvpModelForConditionalGeneration": ("speech_decoder_model",),
    "Qwen2_5OmniForConditionalGeneration": ("thinker", "talker"),
    "Qwen3OmniMoeForConditionalGeneration": ("thinker", "talker"),
}
_SPEAKING = ("ForTextToSpeech", "ForSpeechToSpeech", "Model")
_FIRST = {f"SeamlessM4T{version}{task}": "text_decoder" for version in ("", "v2") for task in _SPEAKING}


def handed_parts(model: Any) -> tuple[str, ...]:
    """The parts whose `generate` the model's own calls without what it was given besides."""
    return next((_HANDED[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _HANDED), ())


def first_phase(model: Any) -> str | None:
    """What the first phase is called where the model itself makes its tokens, and a part goes on; else None."""
    return next((_FIRST[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _FIRST), None)


def generating_part_name(model: Any) -> str | None:
    """What the part of a model that makes its tokens is called; None if it makes them itself."""
    return next((_PARTS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _PARTS), None)


def generating_part(model: Any) -> Any:
    """What makes the tokens of a model: the model itself, or the part that its `generate` calls."""
    name = generating_part_name(model)
    return model if name is None else getattr(model, name)
