"""Beam search and beam sampling.

The search keeps the `num_beams` likeliest continuations of each prompt running, and the best hypotheses that
have finished. It follows transformers' rules: what counts as finished, what length penalty and early stopping
do, and how many candidates are looked at.

Source: the beam search of transformers' `GenerationMixin`, which traces back to Lowerre, "The HARPY speech
recognition system" (1976).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from unspool import bridge
from unspool.decoding.hypotheses import Hypotheses
from unspool.decoding.registry import Decoding, decoding_method
from unspool.records import Beams, Finish, FinishReason, Result, Step

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["beam_sample", "beam_search"]

_BOOKS = ("ids", "scores", "choices", "hopeful")

NEVER = -1.0e9
"""The score of what must not be chosen, as transformers has it."""

Pick = Callable[["DecodingState", torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""From scores `(prompts, choices)`, some number of the best or luckiest choices: their scores and indices."""


class BeamSearch:
    """The books of one beam search. Tensors have the shape `(prompts, beams, ...)`.

    Args:
        state: The state, whose rows are the beams.
        pick: How continuations are chosen.
    """

    def __init__(self, state: DecodingState, pick: Pick) -> None:
        config, rows = state.config, state.ids.shape[0]
        self.state, self.pick = state, pick
        self.beams = int(config.num_beams)
        self.prompts = rows // self.beams
        self.penalty = float(config.length_penalty)
        self.early: bool | str = config.early_stopping
        self.returned = int(config.num_return_sequences)
        self.room = int(config.max_length) - state.prompt_length
        eos = bridge.special_tokens(config, "eos")
        self.considered = max(2, 1 + (0 if eos is None else eos.shape[0])) * self.beams
        self.ids = state.ids.view(self.prompts, self.beams, -1)
        shape = (self.prompts, self.beams)
        self.scores = torch.zeros(shape, device=state.ids.device)
        self.scores[:, 1:] = NEVER  # at first all beams of a prompt are the same
        self.choices = torch.empty((*shape, 0), dtype=torch.int32, device=state.ids.device)
        self.kept = Hypotheses(self.ids, fill=_fill(config))
        self.hopeful = torch.ones(self.prompts, 1, dtype=torch.bool, device=state.ids.device)

    def advance(self, scores: torch.Tensor) -> Step:
        """Takes one step: from log-probabilities `(rows, vocab)` to the beams after it."""
        total = scores.view(self.prompts, self.beams, -1) + self.scores[:, :, None]
        forced, total = self._steered(total)
        pick = self.pick if forced is None else _likeliest
        best, index = pick(self.state, total.flatten(1), self.considered)
        parents, tokens = index // scores.shape[-1], index % scores.shape[-1]
        ids = torch.cat([_rows(self.ids, parents), tokens[:, :, None]], dim=-1)
        offset = torch.arange(self.prompts, device=ids.device)[:, None] * self.beams
        choices = torch.cat([_rows(self.choices, parents), (parents + offset).int()[:, :, None]], dim=-1)
        live, finishes = self.state.ask(ids.flatten(0, 1))
        hits = ~live.view(self.prompts, self.considered)
        going = best + hits.float() * NEVER
        chosen = torch.topk(going, k=self.beams).indices
        self._keep(ids, choices, best, hits, finishes)
        self.ids, self.choices = _rows(ids, chosen), _rows(choices, chosen)
        self.scores, shown = going.gather(1, chosen), best.gather(1, chosen)
        self._lose_hope()
        over = not self._goes_on(hits)
        flat = (parents + offset).gather(1, chosen).flatten()
        return self.state.advance(
            self._beams(flat, tokens.gather(1, chosen).flatten(), shown.flatten(), over),
            ended=dict(enumerate(self.result(None).finishes)) if over else {},
            running=not over,
            forced=forced,
        )

    def _steered(self, total: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The rows whose next token was given, and the totals with nothing but that left to their prompts."""
        state = self.state
        if not state.forced:
            return None, total
        tokens, state.forced = state.forced.next()
        forced = torch.zeros(total.shape[:2], dtype=torch.bool, device=total.device)
        total = total.clone()
        for prompt, token in tokens.items():
            others = torch.arange(total.shape[-1], device=total.device) != token
            total[prompt, :, others] = total[prompt, :, others].clamp(min=NEVER) + 10 * NEVER
            forced[prompt] = True
        return forced.flatten(), total

    def stop(self, prompts: Sequence[int]) -> None:
        """Ends the search for some prompts: their running beams become hypotheses where there are too few."""
        length = max(1, self._new_length(self.ids))
        finish = Finish(FinishReason.STOPPED)
        self.kept = self.kept.filled_up(
            self.ids, self.scores / length**self.penalty, self.choices, finish, only=prompts
        )
        self.hopeful = self.hopeful.clone()
        self.hopeful[list(prompts)] = False
        self.state.forced = self.state.forced.drop(prompts)
        self.state.running = bool(self.hopeful.any())

    def saved(self) -> dict[str, Any]:
        """The books as plain data and tensors."""
        return {**{name: getattr(self, name) for name in _BOOKS}, "kept": self.kept.saved()}

    def load(self, saved: dict[str, Any]) -> None:
        """Takes up books that were saved."""
        for name in _BOOKS:
            setattr(self, name, saved[name])
        self.kept.load(saved["kept"])
        self.state.settle = self.result

    def copied(self, state: DecodingState) -> BeamSearch:
        """The same for a copy of the state."""
        made = copy.copy(self)
        made.state, made.kept = state, self.kept.copied()
        state.settle = made.result
        return made

    def _keep(
        self,
        ids: torch.Tensor,
        choices: torch.Tensor,
        best: torch.Tensor,
        hits: torch.Tensor,
        finishes: dict[int, Finish],
    ) -> None:
        """Offers the candidates that finish now, if they are among the best, to the hypotheses kept."""
        among_best = torch.arange(self.considered, device=hits.device) < self.beams
        finished = hits & among_best
        scores = best / (self._new_length(ids) ** self.penalty)
        full = self.kept.done.all(dim=-1, keepdim=True) & (self.early is True)
        scores = scores + full.float() * NEVER + (~self.hopeful).float() * NEVER + (~finished).float() * NEVER
        self.kept.offer(ids, scores, choices, finished, finishes)

    def _lose_hope(self) -> None:
        """Notes the prompts whose running beams can't beat the worst hypothesis kept."""
        length = self.room if self.early == "never" and self.penalty > 0.0 else self._new_length(self.ids)
        possible = self.scores[:, :1] / (length**self.penalty)
        worst = torch.where(self.kept.done, self.kept.scores.min(dim=1, keepdim=True).values, NEVER)
        self.hopeful = self.hopeful & (possible > worst).any(dim=-1, keepdim=True)

    def _goes_on(self, hits: torch.Tensor) -> bool:
        all_full = self.kept.done.all() & (self.early is True)
        return bool(self.hopeful.any() & ~all_full & ~hits.all())

    def _new_length(self, ids: torch.Tensor) -> int:
        return int(ids.shape[-1]) - self.state.prompt_length

    def _beams(self, parents: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, over: bool) -> Beams:
        full = self.kept.done.all(dim=-1)
        settled = full & (torch.full_like(full, self.early is True) | ~self.hopeful[:, 0])
        return Beams(
            parents=parents,
            tokens=tokens,
            scores=scores,
            ids=self.ids,
            finished_ids=self.kept.ids,
            finished_scores=self.kept.scores,
            finished_lengths=self.kept.lengths(),
            settled=torch.ones_like(settled) if over else settled,
            returned=self.returned,
        )

    def result(self, otherwise: Finish | None) -> Result:
        """The best hypotheses of each prompt; with `otherwise`, running beams stand in for those that are missing."""
        kept = self.kept
        if otherwise is not None:
            kept = kept.filled_up(
                self.ids, self.scores / max(1, self._new_length(self.ids)) ** self.penalty, self.choices, otherwise
            )
        ids, scores, choices, finishes = kept.best(self.returned)
        steps = int((choices + 1).bool().sum(dim=1).max()) if choices.numel() else 0
        fields: dict[str, Any] = {
            "sequences": ids[:, : self.state.prompt_length + steps],
            "finishes": finishes,
            "sequences_scores": scores,
            "beam_indices": choices[:, :steps],
        }
        return self.state.make_result(**fields)


def _likeliest(state: DecodingState, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    best: tuple[torch.Tensor, torch.Tensor] = torch.topk(scores, k=count)
    return best


def _drawn(state: DecodingState, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=count, generator=state.generator)
    drawn = scores.gather(1, indices)
    if not bridge.SORTS_DRAWN_BEAMS:
        return drawn, indices
    ordered, order = drawn.sort(dim=-1, descending=True)
    return ordered, indices.gather(1, order)


def _by_likelihood(state: DecodingState) -> BeamSearch:
    return BeamSearch(state, _likeliest)


def _by_luck(state: DecodingState) -> BeamSearch:
    return BeamSearch(state, _drawn)


@decoding_method("beam_search", rewinds="copies", searches=_by_likelihood)
def beam_search(state: DecodingState) -> Decoding:
    """Keeps the likeliest continuations."""
    yield from _search(state, _by_likelihood)


@decoding_method("beam_sample", rewinds="copies", searches=_by_luck)
def beam_sample(state: DecodingState) -> Decoding:
    """Draws the continuations to keep from the distribution over all beams of a prompt, without replacement."""
    yield from _search(state, _by_luck)


def _search(state: DecodingState, make: Callable[[DecodingState], BeamSearch]) -> Decoding:
    search = state.recall("search", lambda: make(state))
    state.settle = search.result
    while state.running:
        scores = state.score(torch.log_softmax(state.forward(), dim=-1))
        yield search.advance(scores)


def _rows(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of each prompt: from `(prompts, n, length)` those of index `(prompts, m)`."""
    return tensor.take_along_dim(index[:, :, None], dim=1)


def _fill(config: Any) -> int:
    """What finished sequences are filled up with. A pad id of 0 counts as none, as in transformers."""
    pad, eos = (bridge.special_tokens(config, kind) for kind in ("pad", "eos"))
    if eos is None:
        return -1
    return int(pad) if pad is not None and int(pad) else int(eos[0])
