"""Assisted decoding: cheap drafts of several tokens, checked by the model in one forward.

Drafts come from transformers' candidate generators: a smaller model, one with another vocabulary, a look-up in
the prompt, the model's own first layers, or its multi-token prediction. Each accepted token is a step of its
own, with its own tensors.

Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); Chen et al.,
"Accelerating Large Language Model Decoding with Speculative Sampling" (2023).
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from unspool import bridge
from unspool.decoding.registry import Decoding, decoding_method
from unspool.errors import CacheError
from unspool.outputs import cut
from unspool.records import Step

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

    from unspool.state import DecodingState

__all__ = ["assisted"]


@decoding_method("assisted_generation", reads_prompt=True, rolls_back=True, rewinds="ids")
def assisted(state: DecodingState) -> Decoding:
    """Lets a draft propose tokens, and takes those that the model would have chosen itself."""
    rounds = state.recall("rounds", lambda: Rounds(state))
    while state.running or rounds.waiting:
        if not rounds.waiting:
            rounds.waiting.extend(rounds.next())
        yield rounds.waiting.popleft()


@dataclass(slots=True)
class Draft:
    """What a draft proposes: `ids` `(1, length)` with the proposed tokens at the end, and maybe their logits."""

    ids: torch.Tensor
    logits: torch.Tensor | None
    count: int


class Rounds:
    """Drafts and their verification, a round at a time.

    Args:
        state: The state, of one row.
    """

    def __init__(self, state: DecodingState) -> None:
        plan, inputs = state.plan, state.inputs
        assert inputs is not None  # the run has only begun
        self.state = state
        self.only_last = inputs.only_last if inputs.reused else None
        config = copy.copy(state.config)
        config.stop_strings = None  # the draft has no tokenizer to find them with; the state finds them
        config.token_healing = False  # the prompt is healed once, before any draft
        self.source = bridge.candidate_generator(
            plan.model,
            config,
            ids=state.ids,
            tensor=inputs.tensor,
            processors=state.processors,
            kwargs=state.carried.kwargs,
            assistant_model=plan.request.assistant_model,
            tokenizer=plan.request.tokenizer,
            assistant_tokenizer=plan.request.assistant_tokenizer,
        )
        self.outputs: ModelOutput | None = None
        self.matches = 0
        self.waiting: deque[Step] = deque()

    @property
    def bound(self) -> bool:
        """Whether drafts hang on what the model gave last, so that none can follow on a token that it didn't choose."""
        return self._needs_outputs

    def next(self) -> list[Step]:
        """One round: a draft, one forward, and a step for each token that it settles."""
        state, first = self.state, self.state.forwards == 0
        length, forced = state.ids.shape[1], bool(state.forced)
        draft = self._propose(first)
        outputs = self._verify(draft, first)
        cache = outputs.get(bridge.CACHE)
        if first and not bridge.can_crop(cache):
            raise CacheError("Assisted decoding needs a cache that can be cut; this model's can't go back.")
        logits = outputs.logits[:, -draft.count - 1 :].to(copy=True, dtype=torch.float32, device=state.ids.device)
        scores = self._process(draft, logits, length)
        tokens, matches = self._choose(draft, scores)
        steps = self._take(tokens, matches, outputs, logits, scores, first)
        self.matches = len(steps) - 1
        bridge.crop(cache, draft.count - self.matches)
        if not forced:
            self.source.update_candidate_strategy(state.ids, scores, self.matches)
        state.carried.kwargs = bridge.update_model_kwargs(state.plan.model, outputs, state.carried.kwargs, len(steps))
        self.outputs = outputs if self._needs_outputs else None
        state.drafted += draft.count
        state.accepted += sum(step.drafted for step in steps)
        return steps

    @property
    def _needs_outputs(self) -> bool:
        return bool(getattr(self.source, "requires_model_outputs", False))

    def _propose(self, first: bool) -> Draft:
        ids, extra = self.state.ids, {}
        if self.state.forced:
            return Draft(ids, None, 0)
        if self._needs_outputs:
            extra = {
                "model_kwargs": self.state.carried.kwargs,
                "model_outputs": self.outputs,
                "is_first_iteration": first,
                "n_last_matches": self.matches,
            }
        with self.state.randomness():
            proposed, logits = self.source.get_candidates(ids, **extra)
        proposed = proposed.to(ids.device)
        return Draft(proposed, None if logits is None else logits.to(ids.device), proposed.shape[1] - ids.shape[1])

    def _verify(self, draft: Draft, first: bool) -> ModelOutput:
        """One forward over the draft, and at first over the prompt before it."""
        state, model = self.state, self.state.plan.model
        kwargs = bridge.draft_kwargs(model, state.carried.kwargs, state.length + draft.count, draft.count)
        new = (None if self.only_last is None else self.only_last + draft.count) if first else draft.count + 1
        inputs = model.prepare_inputs_for_generation(
            draft.ids, next_sequence_length=new, is_first_iteration=first, **kwargs
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = draft.count + 1
        if self._needs_outputs:
            inputs |= self.source.model_kwargs_overrides
        return state.run(inputs, decoding=not first)

    def _process(self, draft: Draft, logits: torch.Tensor, length: int) -> torch.Tensor:
        if not self.state.processors:
            return logits
        rows = [self.state.process(draft.ids[:, : length + i], logits[:, i]) for i in range(draft.count + 1)]
        return torch.stack(rows, dim=1)

    def _choose(self, draft: Draft, scores: torch.Tensor) -> tuple[list[int], int]:
        """The tokens that the round settles, and how many of them the draft proposed."""
        config, proposed = self.state.config, draft.ids[:, draft.ids.shape[1] - draft.count :]
        weight = getattr(config, "assistant_ensemble_weight", None)
        if config.do_sample and draft.logits is not None:
            return _speculate(proposed[0], draft.logits[0], scores[0], weight, self.state.generator)
        if config.do_sample:
            probabilities = scores[0].softmax(dim=-1)
            selected = torch.multinomial(probabilities, num_samples=1, generator=self.state.generator)[:, 0]
        elif weight is not None and draft.logits is not None:
            mixed = weight * scores[0, :-1].softmax(-1) + (1.0 - weight) * draft.logits[0].softmax(-1)
            selected = torch.cat([mixed, scores[0, -1:]]).argmax(dim=-1)
        else:
            selected = scores[0].argmax(dim=-1)
        matches = int((proposed[0] != selected[:-1]).cumsum(dim=-1).eq(0).sum())
        return selected[: matches + 1].tolist(), matches

    def _take(
        self,
        tokens: list[int],
        matches: int,
        outputs: ModelOutput,
        logits: torch.Tensor,
        scores: torch.Tensor,
        first: bool,
    ) -> list[Step]:
        """A step for each token, up to the one that ends the row."""
        state, steps = self.state, []
        total = state.width
        before = total - logits.shape[1]  # positions of the prompt, all but its last, in the first forward
        for i, token in enumerate(tokens):
            start = 0 if first and i == 0 else before + i
            part = cut(outputs, start, before + i + 1, total)
            state.present(part, logits[:, i].clone(), scores[:, i].clone(), before + i + 1 - start)
            steps.append(state.append(torch.tensor([token], device=state.ids.device), drafted=i < matches))
            if not state.running:
                break
        return [replace(step, more=len(steps) - 1 - i) for i, step in enumerate(steps)]


def _speculate(
    proposed: torch.Tensor,
    draft_logits: torch.Tensor,
    scores: torch.Tensor,
    weight: float | None,
    generator: torch.Generator | None,
) -> tuple[list[int], int]:
    """Speculative sampling (algorithm 1 of Leviathan et al.): the tokens taken have the model's own distribution.

    With an ensemble weight `w`, drafts are held against `w * p + (1 - w) * q` instead, which takes more of them.

    Args:
        proposed: int64 `(count,)`.
        draft_logits: float32 `(count, vocab)`.
        scores: float32 `(count + 1, vocab)`.
        weight: The ensemble weight, or None.
        generator: The source of randomness.
    """
    q, p = draft_logits.softmax(dim=-1), scores.softmax(dim=-1)
    ratio = (p[:-1].gather(1, proposed[:, None]) / q.gather(1, proposed[:, None]))[:, 0]
    if weight is not None:
        ratio = 1.0 - weight + weight * ratio
    luck = torch.rand(ratio.shape, dtype=ratio.dtype, device=ratio.device, generator=generator)
    matches = int((luck > ratio).cumsum(dim=-1).eq(0).sum())
    rest = p[matches]
    if matches < len(proposed):
        left = torch.clamp(p[matches] - q[matches], min=0)
        total = left.sum()
        if weight is None or total > torch.finfo(left.dtype).tiny:
            rest = left / total
    last = torch.multinomial(rest, num_samples=1, generator=generator)
    return [*proposed[:matches].tolist(), int(last)], matches
