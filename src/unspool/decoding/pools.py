"""What diverse and constrained beam search share: beams whose finished hypotheses are kept in pools.

This is the beam search that transformers had before the one it has now. It keeps its books in plain numbers,
hypothesis by hypothesis; a group of beams is over when its pool is full and can't get better; and hypotheses end
with the first end-of-sequence id, whichever it was that ended them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from unspool import bridge
from unspool.records import Beams, Finish, FinishReason, Result, Step

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["Continuation", "Hypothesis", "Pool", "PooledSearch"]

NEVER = -1.0e9
"""The score of beams that are still the same as others, as transformers has it."""


class Continuation(NamedTuple):
    """A beam continued by a token: its score, the row of the beam, and the token."""

    score: float
    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence that has come to an end.

    Attributes:
        score: Its log-probability over its length to the power of the length penalty.
        ids: int64 `(length,)`: prompt included.
        choices: int64 `(steps,)`: the row that each new token was chosen on.
        finish: How it ended.
    """

    score: float
    ids: torch.Tensor
    choices: torch.Tensor
    finish: Finish


class Pool:
    """The best hypotheses of one group of beams.

    Args:
        size: How many are kept: as many as there are beams in the group.
        penalty: The length penalty.
        early: `early_stopping`.
        room: The most new tokens that a sequence can have.
    """

    def __init__(self, size: int, penalty: float, early: bool | str, room: int) -> None:
        self._size, self._penalty, self._early, self._room = size, penalty, early, room
        self.kept: tuple[Hypothesis, ...] = ()
        self.done = False

    def score(self, total: float, length: int) -> float:
        """The score of a sequence of `length` new tokens whose log-probability is `total`."""
        return float(total / length**self._penalty)

    def add(self, hypothesis: Hypothesis) -> None:
        """Keeps a hypothesis, if there is a place or it is better than the worst; the oldest of the worst gives way."""
        if len(self.kept) == self._size:
            worst = min(self.kept, key=lambda kept: kept.score)
            if hypothesis.score <= worst.score:
                return
            self.kept = tuple(kept for kept in self.kept if kept is not worst)
        self.kept += (hypothesis,)

    def judge(self, best: float, length: int) -> None:
        """Notes whether the group is over.

        Args:
            best: The log-probability of its best continuation, running or finished.
            length: How many new tokens that has.
        """
        if self.done or len(self.kept) < self._size:
            return
        reach = self._room if self._early == "never" and self._penalty > 0.0 else length
        self.done = self._early is True or min(kept.score for kept in self.kept) >= self.score(best, reach)


class PooledSearch:
    """The books of one search. Rows are beams; those of a prompt are beside each other, and so are those of a group.

    Args:
        state: The state.
        groups: Into how many groups the beams of a prompt are divided.
    """

    def __init__(self, state: DecodingState, groups: int = 1) -> None:
        config, rows = state.config, state.ids.shape[0]
        self.state = state
        self.beams, self.groups = int(config.num_beams), groups
        self.size, self.prompts = self.beams // groups, rows // self.beams
        self.returned = int(config.num_return_sequences)
        eos = bridge.special_tokens(config, "eos")
        self.eos: list[int] = [] if eos is None else eos.tolist()
        self.pad = 0 if state.pad is None else int(state.pad)
        room = int(config.max_length) - state.prompt_length
        kind = (self.size, float(config.length_penalty), config.early_stopping, room)
        self.pools = [Pool(*kind) for _ in range(self.prompts * groups)]
        self.over = False
        device = state.ids.device
        self.rows = torch.arange(rows, device=device).view(self.prompts, groups, self.size).transpose(0, 1)
        self.scores = torch.full((rows,), NEVER, device=device)
        self.scores[:: self.size] = 0.0  # at first all beams of a group are the same
        self.choices = torch.empty((rows, 0), dtype=torch.int64, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._next: list[Continuation] = [Continuation(0.0, 0, 0)] * rows

    # ------------------------------------------------------------------------ what a search may do its own way

    def may_end(self, row: int) -> bool:
        """Whether a beam may end."""
        return True

    def rearrange(self, prompt: int, chosen: list[Continuation], totals: torch.Tensor) -> list[Continuation]:
        """The continuations that go on, given the likeliest ones that don't end.

        Args:
            prompt: The prompt.
            chosen: As many as there are beams.
            totals: float32 `(rows, vocab)`: the log-probabilities of all continuations of all beams.
        """
        return chosen

    def last(self, rows: Sequence[int], ids: torch.Tensor) -> Sequence[int]:
        """Which of the beams of a group that still run at the end become hypotheses, in that order.

        Args:
            rows: The rows of the group.
            ids: int64 `(rows, length)`: what all beams have come to.
        """
        return rows

    # ---------------------------------------------------------------------------------------------- the search

    def place(self, group: int, totals: torch.Tensor) -> None:
        """Settles how the beams of a group go on, in all prompts.

        Args:
            group: The group.
            totals: float32 `(rows of the group, vocab)`: the log-probabilities of all their continuations.
        """
        rows, vocab = self.rows[group], totals.shape[-1]
        count = max(2, 1 + len(self.eos)) * self.size  # so many that not all can end
        best, index = totals.view(self.prompts, -1).topk(count)
        columns = (best, rows.gather(1, index // vocab), index % vocab)
        found = zip(*(column.tolist() for column in columns), strict=True)
        for prompt, (first, candidates) in enumerate(zip(rows[:, 0].tolist(), found, strict=True)):
            pool = self.pools[prompt * self.groups + group]
            if pool.done:  # what idle rows hold shows in the scores of steps, so they hold what transformers' do
                chosen = [Continuation(0.0, group * self.size, self.pad)] * self.size
            else:
                continuations = [Continuation(*values) for values in zip(*candidates, strict=True)]
                chosen = self.rearrange(prompt, self._fill(pool, continuations), totals)
                pool.judge(continuations[0].score, self._new_length + 1)
            self._next[first : first + self.size] = chosen
        flat = [self._next[row].token for row in rows.flatten().tolist()]
        self.tokens = self.tokens.index_put((rows.flatten(),), torch.tensor(flat, device=rows.device))

    def _fill(self, pool: Pool, continuations: Sequence[Continuation]) -> list[Continuation]:
        """The best continuations that go on; those that end, if they are among the best, go into the pool."""
        chosen: list[Continuation] = []
        for rank, it in enumerate(continuations):
            if it.token not in self.eos:
                chosen.append(it)
            elif rank < self.size and self.may_end(it.parent):
                pool.add(self._ended(pool, it))
            if len(chosen) == self.size:
                break
        return chosen

    def _ended(self, pool: Pool, it: Continuation) -> Hypothesis:
        row = it.parent
        ids, choices = self.state.ids[row], self.choices[row]
        return Hypothesis(
            score=pool.score(it.score, self._new_length + 1),
            ids=torch.cat([ids, ids.new_tensor(self.eos[:1])]),
            choices=torch.cat([choices, choices.new_tensor([row])]),
            finish=Finish(FinishReason.EOS, it.token),
        )

    def advance(self) -> Step:
        """The step to yield, once all groups have been placed."""
        state, device = self.state, self.scores.device
        scores, parents, _ = zip(*self._next, strict=True)
        self.scores = torch.tensor(scores, dtype=torch.float32, device=device)
        rows = torch.tensor(parents, device=device)
        ids = torch.cat([state.ids[rows], self.tokens[:, None]], dim=-1)
        self.choices = torch.cat([self.choices[rows], rows[:, None]], dim=-1)
        finishes: dict[int, Finish] = {}
        self.over = all(pool.done for pool in self.pools)
        if not self.over:
            live, finishes = state.ask(ids)
            self.over = not bool(live.any())
        idle = [pool.done for pool in self.pools]
        if self.over:
            self.pools = self._closed(ids, finishes, None)
        ended = self._finishes() if self.over else []
        step = state.advance(
            self._beams(rows, ids, idle),
            ended=dict(enumerate(ended)),
            running=not self.over,
            across=self.prompts > 1 and any(idle),
        )
        self.tokens = torch.zeros_like(self.tokens)
        return step

    @property
    def _new_length(self) -> int:
        return self.state.ids.shape[-1] - self.state.prompt_length

    # ------------------------------------------------------------------------------------------ the hypotheses

    def _closed(self, ids: torch.Tensor, finishes: dict[int, Finish], otherwise: Finish | None) -> list[Pool]:
        """The pools once the beams that still run have become hypotheses.

        Args:
            ids: int64 `(rows, length)`.
            finishes: How they end.
            otherwise: How those end of which nothing is known; None once the search is over.
        """
        limit = self.state.endings.max_length
        early = bool(self.eos) and otherwise is None and not (limit is not None and ids.shape[-1] >= limit)
        tail = ids.new_tensor(self.eos[:1] if early else [])  # transformers puts it after each that leaves room
        length = max(1, ids.shape[-1] - self.state.prompt_length)
        totals, pools = self.scores.tolist(), [copy.copy(pool) for pool in self.pools]
        for number, pool in enumerate(pools):
            for row in [] if pool.done else self.last(range(number * self.size, (number + 1) * self.size), ids):
                finish = finishes.get(row, otherwise) or Finish(FinishReason.STOPPED)
                score = pool.score(totals[row], length)
                pool.add(Hypothesis(score, torch.cat([ids[row], tail]), self.choices[row], finish))
        return pools

    def _ranked(self, pools: Sequence[Pool]) -> list[list[Hypothesis]]:
        """For each prompt the hypotheses kept, best first; of equals the newest first."""
        by_prompt = [pools[start : start + self.groups] for start in range(0, len(pools), self.groups)]
        every = [[kept for pool in group for kept in pool.kept] for group in by_prompt]
        return [sorted(kept, key=lambda hypothesis: hypothesis.score)[::-1] for kept in every]

    def _finishes(self) -> list[Finish]:
        return [kept.finish for prompt in self._ranked(self.pools) for kept in prompt[: self.returned]]

    def _beams(self, parents: torch.Tensor, ids: torch.Tensor, idle: list[bool]) -> Beams:
        device, shape = ids.device, (self.prompts, self.beams)
        over = torch.tensor(idle, device=device)
        settled = over.view(self.prompts, self.groups).all(dim=-1)
        ranked = self._ranked(self.pools)
        beams = ids.view(*shape, -1)
        finished = beams.new_zeros(*shape, max([ids.shape[-1], *(len(kept.ids) for row in ranked for kept in row)]))
        for prompt, row in enumerate(ranked):
            for place, kept in enumerate(row):
                finished[prompt, place, : len(kept.ids)] = kept.ids
        empty = [[(NEVER, 0)] * (self.beams - len(row)) for row in ranked]
        filled = [[(kept.score, len(kept.ids)) for kept in row] + rest for row, rest in zip(ranked, empty, strict=True)]
        scores, lengths = torch.tensor(filled, dtype=torch.float64, device=device).unbind(dim=-1)
        return Beams(
            parents=parents,
            tokens=self.tokens,
            scores=self.scores,
            ids=beams,
            finished_ids=finished,
            finished_scores=scores.float(),
            finished_lengths=lengths.long(),
            settled=torch.ones_like(settled) if self.over else settled,
            returned=self.returned,
            idle=over.repeat_interleave(self.size),
        )

    def saved(self) -> dict[str, Any]:
        """The books as plain data and tensors."""
        kept = [[(it.score, it.ids, it.choices, it.finish) for it in pool.kept] for pool in self.pools]
        tensors = {name: getattr(self, name) for name in ("scores", "choices", "tokens")}
        return {**tensors, "kept": kept, "done": [pool.done for pool in self.pools], "over": self.over}

    def load(self, saved: dict[str, Any]) -> None:
        """Takes up books that were saved."""
        for name in ("scores", "choices", "tokens", "over"):
            setattr(self, name, saved[name])
        for pool, kept, done in zip(self.pools, saved["kept"], saved["done"], strict=True):
            pool.kept, pool.done = tuple(Hypothesis(*fields) for fields in kept), bool(done)
        self.state.settle = self.result

    def copied(self, state: DecodingState) -> Self:
        """The same for a copy of the state."""
        made = copy.copy(self)
        made.state, made.pools, made._next = state, [copy.copy(pool) for pool in self.pools], list(self._next)
        state.settle = made.result
        return made

    def result(self, otherwise: Finish) -> Result:
        """The best hypotheses of each prompt; while the search goes on, running beams stand in as if it were over."""
        pools = self.pools if self.over else self._closed(self.state.ids, {}, otherwise)
        best = [kept for prompt in self._ranked(pools) for kept in prompt[: self.returned]]
        fields: dict[str, Any] = {
            "sequences": pad_sequence([kept.ids for kept in best], batch_first=True, padding_value=self.pad),
            "finishes": tuple(kept.finish for kept in best),
            "sequences_scores": torch.tensor([kept.score for kept in best], device=self.scores.device),
            "beam_indices": pad_sequence([kept.choices for kept in best], batch_first=True, padding_value=-1).int(),
        }
        return self.state.make_result(**fields)
