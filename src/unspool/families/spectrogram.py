"""SpeechT5: speech as frames of a spectrogram (Ao et al., 2021, arXiv:2110.07205)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from greenlet import getcurrent
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from unspool.families.alone import AloneLoop, settings
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.families.frames import FrameStep
from unspool.records import Finish, FinishReason, Step

__all__ = ["Spectrogram"]


class Spectrogram(EncoderDecoder):
    """Each step gives some frames of the spectrogram, and says whether the speech is over.

    `step.frames`, `(rows, mel bins, count)`, holds the frames that are final: what smooths the spectrogram afterwards
    looks some frames ahead. `step.tokens` is 1 where a row ends, else 0, and `step.logits` the logarithms of the
    probabilities of both.
    """

    name: ClassVar[str] = "spectrogram"
    step: ClassVar[type[Step]] = FrameStep
    around_own_loop: ClassVar[bool] = True

    def loop(self, request: Any) -> type[AloneLoop]:
        """What runs the class's own loop."""
        return _SpectrogramLoop


class _SpectrogramLoop(AloneLoop):
    method = "spectrogram"

    def run(self, given: dict[str, Any]) -> Any:
        """Runs the loop with an ear at what makes the frames."""
        model: Any = self.model
        ids = given["input_ids"]
        self.begin(torch.zeros(ids.shape[0], 0, dtype=torch.long, device=ids.device), settings(model, {}))
        config = model.config
        self._threshold = given.get("threshold", 0.5)
        self._least, self._most = (
            int(ids.shape[1] * given.get(name, default) / config.reduction_factor)
            for name, default in (("minlenratio", 0.0), ("maxlenratio", 20.0))
        )
        self._reach = config.speech_decoder_postnet_layers * (config.speech_decoder_postnet_kernel // 2)
        self._raw: torch.Tensor | None = None
        self._final: dict[int, torch.Tensor] = {}
        self._told = 0
        self._here, net = getcurrent(), model.speech_decoder_postnet
        ears = [net.feat_out.register_forward_hook(self._spectrum), net.prob_out.register_forward_hook(self._stop)]
        try:
            return model.generate(**given)
        finally:
            for ear in ears:
                ear.remove()

    def _spectrum(self, module: nn.Module, inputs: Any, made: torch.Tensor) -> None:
        """Keeps the frames of a step: `(rows, frames, mel bins)`."""
        if getcurrent() is self._here:
            config: Any = self.model.config
            new = made.view(made.shape[0], config.reduction_factor, config.num_mel_bins)
            self._raw = new if self._raw is None else torch.cat([self._raw, new], dim=1)

    def _stop(self, module: nn.Module, inputs: Any, made: torch.Tensor) -> None:
        """Makes a step of the frames, and of whether there are more."""
        if getcurrent() is not self._here:
            return
        ends = torch.sigmoid(made).sum(dim=-1)
        live = self.live()
        self.forwards += 1
        ended = self._ended(ends, live)
        tokens = torch.zeros_like(live, dtype=torch.long)
        tokens[list(ended)] = 1
        chance = ends.clamp(1e-6, 1 - 1e-6).float()
        logits = torch.stack([1 - chance, chance], dim=-1).log()
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=-1)
        step = FrameStep(
            index=self.steps,
            forward=self.forwards - 1,
            tokens=tokens,
            live=live,
            logits=logits,
            scores=logits,
            outputs=BaseModelOutput(last_hidden_state=inputs[0][:, None]),
            positions=range(self.steps, self.steps + 1),
            ended=ended,
            frames=self._frames(ended),
        )
        self.steps += 1
        self.emit(step)

    def _ended(self, ends: torch.Tensor, live: torch.Tensor) -> dict[int, Finish]:
        if self.forwards < self._least:
            return {}
        over = self.forwards >= self._most
        finish = Finish(FinishReason.MAX_LENGTH, self._most) if over else Finish(FinishReason.EOS, 1)
        rows = (live if over else live & (ends >= self._threshold)).nonzero().flatten().tolist()
        for row in rows:
            self.finishes[row] = finish
        return dict.fromkeys(rows, finish)

    def _frames(self, ended: dict[int, Finish]) -> torch.Tensor:
        """The frames that are final now and were not before."""
        assert self._raw is not None  # it was heard before
        smooth: Any = self.model.speech_decoder_postnet
        if ended:
            whole = smooth.postnet(self._raw)
            self._final |= {row: whole[row] for row in ended}
        length = self._raw.shape[1]
        stop = length if all(self.finishes) else max(self._told, length - self._reach)
        first = max(0, self._told - self._reach)
        made = self._raw.new_zeros(self._raw.shape[0], stop - self._told, self._raw.shape[2])
        if stop > self._told and not all(self.finishes):
            made = smooth.postnet(self._raw[:, first:])[:, self._told - first : stop - first].clone()
        for row, final in self._final.items():
            part = final[self._told : stop]
            made[row] = 0
            made[row, : part.shape[0]] = part
        self._told = stop
        return made.mT

    def release(self) -> None:
        """Lets go of the frames."""
        self._raw, self._final = None, {}
