"""Models that make sound in frames: several codebooks, or a latent, at each moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unspool.families.decoder_only import DecoderOnly
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.families.voice import Voice
from unspool.records import Step

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["CodebookFrames", "DelayedFrames", "DelayedFramesFromText", "FrameStep", "LatentFrames"]


@dataclass(frozen=True, slots=True)
class FrameStep(Step):
    """A step of a model that makes sound.

    Attributes:
        frames: The frames that this step completed, `(samples, codebooks or size, count)`: codes as int64, latents and
            spectrograms as floats. Joined along their last dimension they are the sound.

        sounding: bool `(rows,)`: the rows whose frames are sound; those of others only fill up. None if all are.
    """

    frames: torch.Tensor | None = None
    sounding: torch.Tensor | None = None


class DelayedFrames(DecoderOnly):
    """MusicGen's decoder: each codebook is a row, one position behind the one before it.

    The delay is undone in `step.frames` (Copet et al., 2023, arXiv:2306.05284).
    """

    name: ClassVar[str] = "delayed_frames"
    step: ClassVar[type[Step]] = FrameStep
    around_own_loop: ClassVar[bool] = True

    def record(self, model: PreTrainedModel, state: Any, **fields: Any) -> Step:
        """The step, with the frame whose last codebook it gave."""
        return FrameStep(**fields, frames=_undelayed(model, state, first=fields["index"] == 0))

    def voice(self, model: PreTrainedModel) -> Voice | None:
        """The codec, if the model has one."""
        codec = getattr(model, "audio_encoder", None)
        if codec is None:
            return None
        stereo = model.decoder.config.audio_channels == 2

        def decode(frames: torch.Tensor) -> torch.Tensor:
            sides = [frames[:, ::2], frames[:, 1::2]] if stereo else [frames]
            scales = [None] * frames.shape[0]
            made = [codec.decode(side[None], audio_scales=scales).audio_values for side in sides]
            return torch.cat(made, dim=1)

        return Voice(decode, codec.config.sampling_rate)


class DelayedFramesFromText(DelayedFrames, EncoderDecoder):
    """MusicGen with its text encoder."""

    name: ClassVar[str] = "delayed_frames_from_text"
    prefix: ClassVar[str] = EncoderDecoder.prefix
    start = EncoderDecoder.start


class CodebookFrames(DecoderOnly):
    """CSM: all codebooks of a frame are made at each step."""

    name: ClassVar[str] = "codebook_frames"
    step: ClassVar[type[Step]] = FrameStep
    around_own_loop: ClassVar[bool] = True

    def record(self, model: PreTrainedModel, state: Any, **fields: Any) -> Step:
        """The step, with its tokens as a frame."""
        tokens = fields["tokens"]
        over = (tokens == model.config.codebook_eos_token_id).all(dim=-1)
        return FrameStep(**fields, frames=tokens[..., None], sounding=fields["live"] & ~over)

    def voice(self, model: PreTrainedModel) -> Voice | None:
        """The codec."""
        codec: Any = model.codec_model
        return Voice(lambda frames: codec.decode(frames).audio_values, codec.config.sampling_rate)


class LatentFrames(DecoderOnly):
    """PocketTTS and its kin: each step makes a latent of the sound, and the tokens only count them."""

    name: ClassVar[str] = "latent_frames"
    step: ClassVar[type[Step]] = FrameStep
    around_own_loop: ClassVar[bool] = True
    taps: ClassVar[tuple[str, ...]] = ("sample_latent",)

    def record(self, model: PreTrainedModel, state: Any, **fields: Any) -> Step:
        """The step, with the latent as the sound's decoder takes it; zero for rows that have ended."""
        latent = model.denormalize_latents(state.heard["sample_latent"])
        return FrameStep(
            **fields,
            frames=(latent * fields["live"][:, None].to(latent.dtype))[..., None],
            sounding=fields["live"],
        )


def _undelayed(model: Any, state: Any, first: bool) -> torch.Tensor:
    """The frames that are complete with the newest position; at the first step also those before it."""
    books = getattr(model, "num_codebooks", None) or model.decoder.num_codebooks
    kwargs = state.carried.kwargs
    mask = next(kwargs[name] for name in ("delay_pattern_mask", "decoder_delay_pattern_mask") if name in kwargs)
    length = state.ids.shape[1]
    ids = torch.where(mask[:, :length] == -1, state.ids, mask[:, :length]).view(-1, books, length)
    lags = (mask.view(-1, books, mask.shape[1])[0] == -1).long().argmax(-1)  # a codebook's first free position
    lags = lags - lags.min()
    count = length - 1 - int(lags.max())  # position 0 is the start token
    if count <= 0:
        return ids.new_zeros(ids.shape[0], books, 0)
    since = 1 if first else count
    each = [ids[:, book, since + lag : count + lag + 1] for book, lag in enumerate(lags.tolist())]
    return torch.stack(each, dim=1)
