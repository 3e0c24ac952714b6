"""A tiny model for every class with a `generate` of its own, and what is proved of it against that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.utils import ModelOutput

from unspool import generate, generate_stream
from zoo import diffusion, omni, rag, sound, speech, wrappers

Maker = Callable[[], tuple[Any, dict[str, Any]]]


def _seamless(version: str, part: str) -> Maker:
    return functools.partial(wrappers.seamless, part, version)


def _whisper() -> tuple[Any, dict[str, Any]]:
    settings = {"language": "en", "return_timestamps": True}
    return speech.whisper(), {**speech.sound((0.9, 0.6)), **settings}


def _musicgen_decoder() -> tuple[Any, dict[str, Any]]:
    model, ids = sound.musicgen_decoder()
    return model, {"inputs": ids}


SEAMLESS = ("ForTextToText", "ForSpeechToText", "ForTextToSpeech", "ForSpeechToSpeech", "Model")
MAKERS: dict[str, Maker] = {
    "BarkModel": sound.bark,
    "Blip2ForConditionalGeneration": wrappers.blip_2,
    "BlipForConditionalGeneration": wrappers.blip,
    "BlipForQuestionAnswering": wrappers.blip_question,
    "ClvpModelForConditionalGeneration": wrappers.clvp,
    "CsmForConditionalGeneration": sound.csm,
    "DiaForConditionalGeneration": sound.dia,
    "DiffusionGemmaForBlockDiffusion": diffusion.diffusion_gemma,
    "GraniteSpeechForConditionalGeneration": wrappers.granite_speech,
    "GraniteSpeechPlusForConditionalGeneration": functools.partial(wrappers.granite_speech, plus=True),
    "InstructBlipForConditionalGeneration": wrappers.instruct_blip,
    "InstructBlipVideoForConditionalGeneration": wrappers.instruct_blip_video,
    "JanusForConditionalGeneration": wrappers.janus,
    "JanusForConditionalGeneration (image)": wrappers.janus_image,
    "Kosmos2ForConditionalGeneration": wrappers.kosmos_2,
    "KyutaiSpeechToTextForConditionalGeneration": wrappers.kyutai,
    "MoshiForConditionalGeneration": wrappers.moshi,
    "MusicgenForCausalLM": _musicgen_decoder,
    "MusicgenForConditionalGeneration": sound.musicgen,
    "MusicgenMelodyForConditionalGeneration": functools.partial(sound.musicgen, melody=True),
    "PocketTTSForConditionalGeneration": sound.pocket_tts,
    "Pop2PianoForConditionalGeneration": wrappers.pop2piano,
    "Qwen2_5OmniForConditionalGeneration": omni.qwen_2_5,
    "RagSequenceForGeneration": rag.rag_sequence,
    "RagTokenForGeneration": rag.rag_token,
    "SpeechT5ForTextToSpeech": functools.partial(speech.speech_t5, 1),
    "WhisperForConditionalGeneration": _whisper,
    **{name: functools.partial(speech.transducer, name) for name in speech.TRANSDUCERS},
    **{f"SeamlessM4T{version}{part}": _seamless(version, part) for version in ("", "v2") for part in SEAMLESS},
}
"""By the class; behind it, in brackets, what it is asked to do."""

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9},
    "beams": {"num_beams": 2, "do_sample": False},
    "padded": {"do_sample": False},
    "outputs": {
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": True,
    },
}
LENGTH = 8
UNPROVED = {
    "BarkCoarseModel": "a part of BarkModel, proved with it",
    "BarkSemanticModel": "a part of BarkModel, proved with it",
    "GradiumPhononTTSForConditionalGeneration": "as PocketTTSForConditionalGeneration, which it extends",
    "MusicgenMelodyForCausalLM": "as MusicgenForCausalLM",
    "Nemotron3_5TranscribeForConditionalGeneration": "no tiny model of it could be built",
    "Qwen3OmniMoeForConditionalGeneration": "as Qwen2_5OmniForConditionalGeneration; no tiny model of its own",
}
"""What is run without a proof of its own, and why."""
ON_PURPOSE = {("DiaForConditionalGeneration", "outputs"): "differs on purpose"}
"""What the page of differences explains."""


def here(name: str) -> bool:
    """Whether the installed transformers has the class."""
    return hasattr(transformers, name.split()[0]) or name.startswith("SeamlessM4T")


@functools.cache
def prove(name: str, method: str) -> str:
    """`"equal"`, or why there is nothing to compare.

    Raises:
        AssertionError: What is streamed differs from what the class's own `generate` makes.
    """
    if (name, method) in ON_PURPOSE:
        return ON_PURPOSE[name, method]
    model, inputs = MAKERS[name]()
    if method == "padded":
        inputs = padded(inputs)
        if inputs is None:
            return "no ids to pad"
    how = settings(model, inputs, METHODS[method])
    if how is None:
        return "has no such setting"
    try:
        torch.manual_seed(7)
        expected = model.generate(**copied(inputs), **how)
    except Exception as error:
        return f"its own fails: {type(error).__name__}"
    torch.manual_seed(7)
    found = generate(model, **copied(inputs), **how)
    torch.manual_seed(7)
    stream = generate_stream(model, **copied(inputs), **how)
    events = list(stream.events())
    assert len(events) > 2
    compare(found, expected)
    compare(stream.result.sequences if stream.result.output is None else stream.result.output, expected)
    return "equal"


def settings(model: Any, inputs: dict[str, Any], method: dict[str, Any]) -> dict[str, Any] | None:
    """The settings as the class takes them; None if it has none of the kind."""
    name = type(model).__name__
    if name == "SpeechT5ForTextToSpeech":
        return {"threshold": 0.9, "maxlenratio": 3.0} if method == METHODS["greedy"] else None
    if name == "DiffusionGemmaForBlockDiffusion":
        return {"max_new_tokens": LENGTH, "max_denoising_steps": 4} if method == METHODS["sampling"] else None
    if name.startswith("Rag"):
        return {**method, "max_length": 10} if "output_scores" not in method else None
    if name.startswith("Qwen"):  # its two parts have lengths of their own
        return method if set(method) <= {"do_sample", "temperature"} else None
    if name == "BarkModel":  # its parts have lengths of their own
        return None if "output_scores" in method else method
    longer = 60 if "RNNT" in name or "TDT" in name else LENGTH
    return {**method, "max_new_tokens": longer}


def padded(inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The inputs with a first row that is shorter; None if they have no ids with a mask."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None or mask is None or ids.ndim != 2 or ids.shape != mask.shape:
        return None
    first = torch.zeros_like(ids[:, :2])
    ids, mask = torch.cat([first, ids], dim=1), torch.cat([first, mask], dim=1)
    second = ids[1:, 2:4] if "pixel_values" not in inputs and "input_features" not in inputs else first[1:]
    ids[1:, :2], mask[1:, :2] = second, (second != 0).long()
    made = {**inputs, "input_ids": ids, "attention_mask": mask}
    if "image_embeds_position_mask" in inputs:
        where = inputs["image_embeds_position_mask"]
        made["image_embeds_position_mask"] = torch.cat([first, where], dim=1)
    return made


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors of their own: some classes write to what they are given."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in an output, caches aside."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (dict, ModelOutput)):
        kept = (item for name, item in value.items() if "cache" not in name and "past" not in name)
        return [tensor for item in kept for tensor in tensors(item)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def compare(found: Any, expected: Any) -> None:
    """Sees to it that both hold the same tensors."""
    ours, theirs = tensors(found), tensors(expected)
    assert [it.shape for it in ours] == [it.shape for it in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert torch.allclose(our.float(), their.float(), atol=1e-4, equal_nan=True)
