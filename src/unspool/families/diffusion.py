"""DiffusionGemma: blocks of text that are revised as a whole until they are good."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.events import Draft
from unspool.families.alone import AloneLoop, settings
from unspool.families.decoder_only import DecoderOnly
from unspool.records import Finish, FinishReason, PrefillProgress, Step

__all__ = ["BlockDiffusion"]


class BlockDiffusion(DecoderOnly):
    """Each revision of a block is told by a `Draft`; once the block is settled, there is a step for each position.

    The steps of a block show the logits and scores of its last revision, and `step.outputs` its output for the whole
    block, all of whose positions are in `step.positions`.
    """

    name: ClassVar[str] = "block_diffusion"
    around_own_loop: ClassVar[bool] = True

    def loop(self, request: Any) -> type[AloneLoop]:
        """What runs the class's own loop."""
        return _BlockLoop


class _BlockLoop(AloneLoop):
    method = "block_diffusion"

    def run(self, given: dict[str, Any]) -> Any:
        """Runs the loop with an ear at every revision, and at what ends it."""
        self.config = settings(self.model, given)
        self.begin(given["input_ids"], self.config)
        self._round, self._logits, self._scores, self._outputs = 0, None, None, None  # type: int, Any, Any, Any
        self.emit(PrefillProgress(0, self.prompt_length))
        criteria = _Criteria(self, given.pop("stopping_criteria", None) or ())
        host = bridge.stand_in(self.model, {bridge.DENOISE: lambda host, **it: self._denoise(host, **it)})
        given["logits_processor"] = LogitsProcessorList(given.get("logits_processor") or ())
        made = host.generate(**given, stopping_criteria=criteria)
        self.finishes = [end or Finish(FinishReason.MAX_LENGTH, self.ids.shape[1]) for end in self.finishes]
        return made

    def _denoise(self, host: Any, **given: Any) -> Any:
        """Revises the block, and tells how it stands."""
        if not self.forwards:
            self.emit(PrefillProgress(self.prompt_length, self.prompt_length))
        forward, settled = given["decoder_forward"], given["finished_denoising"].clone()

        def heard(**inputs: Any) -> Any:
            self._outputs = forward(**inputs)
            return self._outputs

        made = getattr(type(self.model), bridge.DENOISE)(host, **{**given, "decoder_forward": heard})
        _, ids, scores, _ = made
        logits = self._outputs.logits.float()
        if self._logits is not None and bool(settled.any()):  # such a row isn't changed any more
            logits = torch.where(settled[:, None, None], self._logits, logits)
        self._logits, self._scores = logits, scores.float()
        self.emit(Draft(given["input_ids"].shape[1], ids.clone(), self._round))
        self._round, self.forwards = self._round + 1, self.forwards + 1
        return made

    def settle(self, ids: torch.Tensor, done: torch.Tensor) -> None:
        """Makes the steps of a block.

        Args:
            ids: int64 `(rows, length)`: with the block.
            done: bool `(rows,)`: the rows that end with it.
        """
        start, stop = self.ids.shape[1], ids.shape[1]
        eos = self.config.eos_token_id
        ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        outputs = self._outputs
        outputs_of.drop(outputs, bridge.STATE_NAMES)
        for place in range(stop - start):
            tokens, live = ids[:, start + place].clone(), self.live()
            if self.config.pad_token_id is not None:
                tokens[~live] = self.config.pad_token_id
            ended = self._ended(tokens, live & done.to(live.device), ends, last=place == stop - start - 1)
            self.ids = torch.cat([self.ids, tokens[:, None]], dim=-1)
            step = Step(
                index=self.steps,
                forward=self.forwards - 1,
                tokens=tokens,
                live=live,
                logits=self._logits[:, place],
                scores=self._scores[:, place],
                outputs=outputs,
                positions=range(start, stop),
                ended=ended,
                more=stop - start - 1 - place,
            )
            self.steps += 1
            self.emit(step)
        self._round, self._logits, self._scores, self._outputs = 0, None, None, None

    def _ended(self, tokens: torch.Tensor, ending: torch.Tensor, eos: list[int], *, last: bool) -> dict[int, Finish]:
        """The rows of those that end in the block which end with these tokens."""
        ended = {}
        for row in ending.nonzero().flatten().tolist():
            token = int(tokens[row])
            if token in eos:
                ended[row] = self.finishes[row] = Finish(FinishReason.EOS, token)
            elif last:
                ended[row] = self.finishes[row] = Finish(FinishReason.CRITERION)
        return ended

    def release(self) -> None:
        """Lets go of the block."""
        self._logits = self._scores = self._outputs = None


class _Criteria(StoppingCriteriaList):
    """Asks the criteria, and has the steps made before the block is filled up."""

    def __init__(self, loop: _BlockLoop, criteria: Any) -> None:
        super().__init__(criteria)
        self._loop = loop

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        done = super().__call__(input_ids, scores, **kwargs)
        self._loop.settle(input_ids, done)
        return done
