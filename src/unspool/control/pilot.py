"""Carries out commands on a run that is between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unspool.bundle import Siblings
from unspool.control.copying import branch, snapshot
from unspool.control.rewinding import cut, go_back, put_books, rewinds, why_uncuttable
from unspool.control.saving import save
from unspool.control.updating import update
from unspool.errors import ArgumentError, StreamError, UnsupportedError
from unspool.events import Change, Retract
from unspool.forcing import Forced
from unspool.records import Event, Finish, FinishReason, Step
from unspool.texts import Tokens, as_ids

if TYPE_CHECKING:
    from unspool.state import DecodingState

__all__ = ["Pilot"]

Rows = int | Iterable[int] | None


class Pilot:
    """Commands on a state. Each leaves it as it was if it can't be carried out, and gives the events that tell of it.

    Args:
        state: The state; nothing is running on it.
    """

    def __init__(self, state: DecodingState) -> None:
        self.state = state

    @property
    def step(self) -> int:
        """How many steps have been handed out."""
        return self.state.steps - self._waiting()

    def stop(self, rows: Rows) -> list[Event]:
        """Ends rows, or under beams prompts."""
        state, chosen = self.state, self._rows(rows)
        self._drop_waiting()
        finish = Finish(FinishReason.STOPPED)
        if not state.plan.method.searches:
            state.end(chosen, finish)
        elif len(chosen) == self._prompts():
            state.running = False
        elif hasattr(self._search(), "stop"):
            self._search().stop(chosen)
        else:
            raise UnsupportedError(f"{state.plan.method.name} can only be stopped as a whole; leave out rows.")
        return self._commanded()

    def force(self, tokens: Tokens | Mapping[int, Tokens], rows: Rows, tokenizer: Any) -> list[Event]:
        """Sets the next tokens of rows, or under beams of all beams of prompts."""
        state = self.state
        self._must_take_tokens("forced")
        if not state.running and not self._waiting():
            raise StreamError("All rows have ended; there is no next token.")
        given = tokens if isinstance(tokens, Mapping) else dict.fromkeys(self._rows(rows), tokens)
        if isinstance(tokens, Mapping) and rows is not None:
            raise ArgumentError("rows and a mapping from rows were both given; leave one out.")
        every = {row: self._ids(each, tokenizer) for row, each in given.items() for row in self._rows(row)}
        self._drop_waiting()
        for row, ids in every.items():
            state.forced = state.forced.add([row], ids)
        if state.plan.method.reads_prompt:  # drafts are made anew after what was forced
            state.memory = {}
            state.turn += 1
        return self._commanded()

    def replace(self, tokens: int | Tokens | Mapping[int, int], latest: Step | None) -> tuple[list[Event], Step]:
        """Takes other tokens at the latest step."""
        state = self.state
        self._must_take_tokens("replaced")
        if state.plan.method.searches:
            raise UnsupportedError(f"{state.plan.method.name} chooses among beams; force the next tokens instead.")
        if latest is None or self.step == 0:
            raise StreamError("There is no step whose token could be replaced; take one first.")
        chosen = self._chosen(tokens, latest)
        before = state.timeline.find(self.step - 1)
        self._drop_waiting()
        if before is None:
            raise StreamError("The books of the step before are gone.")
        state.unread()
        waiting = state.forced
        counts = {name: getattr(state, name) for name in ("forwards", "drafted", "accepted")}
        state.ids = state.ids[:, :-1].contiguous()
        put_books(state, before)
        for name, count in counts.items():
            setattr(state, name, count)
        state.timeline.forget(before.steps)
        state.forced = Forced({row: (token,) for row, token in chosen.items()})
        state.present(latest.outputs, latest.logits, latest.scores, len(latest.positions), latest.forward)
        step = state.append(latest.tokens.clone(), drafted=latest.drafted)
        state.forced = waiting.drop(row for row, finish in enumerate(state.finishes) if finish is not None)
        if state.plan.method.reads_prompt:
            state.memory = {}
        state.turn += 1
        return [Retract(1, before.steps), step, *self._commanded()], step

    def rewind(self, count: int) -> list[Event]:
        """Goes back some steps."""
        at = self.step
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ArgumentError(f"rewind takes a number of steps, 0 or more; given was {count!r}.")
        if count > at:
            raise ArgumentError(f"rewind({count}) would go past the prompt: {at} steps have been made.")
        if count == 0:
            return []
        if at - count < self.state.timeline.first:
            raise StreamError(f"rewind({count}) would go past the step at which this stream was forked.")
        config = self.state.config
        go_back(self.state, at - count)
        changed: list[Event] = [] if self.state.config is config else [Change(self.state.config)]
        return [Retract(count, at - count), *changed]

    def update(self, rows: Rows, settings: Mapping[str, Any]) -> list[Event]:
        """Changes settings from the next step on."""
        chosen = None if rows is None else self._rows(rows)
        self._drop_waiting()
        update(self.state, chosen, settings)
        state = self.state
        told: list[Event] = [Change(state.config)]
        if state.row_configs is not None:
            told = [Change(config, (row,)) for row, config in enumerate(state.row_configs)]
        return [*told, *self._commanded()]

    def fork(self, count: int, seed: int | None) -> list[DecodingState]:
        """States that go on from here, each by itself."""
        state = self.state
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(f"fork takes a number of streams, 1 or more; given was {count!r}.")
        if not rewinds(state):
            raise UnsupportedError(f"{state.plan.method.name} can't be forked: not all of it can be copied.")
        self._drop_waiting()
        made = [branch(state, None if seed is None else seed + number) for number in range(count)]
        siblings = Siblings(made) if count > 1 else None
        for each in made:
            each.siblings = siblings
        return made

    def save(self, path: str | Path) -> None:
        """Writes the state to a file."""
        if not rewinds(self.state):
            raise UnsupportedError(f"{self.state.plan.method.name} can't be saved: not all of it can be copied.")
        self._drop_waiting()
        save(path, self.state)

    def _commanded(self) -> list[Event]:
        state = self.state
        if state.timeline.every:
            state.timeline.snapshots.append(snapshot(state, commanded=True))
        return []

    # --------------------------------------------------------------------------------------------- what is asked

    def _prompts(self) -> int:
        state = self.state
        return state.ids.shape[0] // (state.rows_per_prompt if state.plan.method.searches else 1)

    def _rows(self, rows: Rows) -> list[int]:
        """The rows meant, or under beams the prompts: those that are live, if none are named.

        Raises:
            ArgumentError: There is no such row, or it has ended.
        """
        count, finishes = self._prompts(), self.state.finishes
        searches = self.state.plan.method.searches
        if rows is None:
            return [row for row in range(count) if searches or finishes[row] is None]
        named = [rows] if isinstance(rows, int) else list(rows)
        for row in named:
            if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < count:
                raise ArgumentError(f"rows={rows!r}: {row!r} is none of the {count} rows, numbered from 0.")
            if not searches and finishes[row] is not None:
                raise StreamError(f"Row {row} has ended already ({finishes[row].reason.name}).")  # type: ignore[union-attr]
        return named

    def _ids(self, tokens: Tokens, tokenizer: Any) -> list[int]:
        ids = as_ids(tokens, tokenizer if tokenizer is not None else self.state.plan.request.tokenizer)
        self._in_vocabulary(ids)
        return ids

    def _in_vocabulary(self, ids: Sequence[int]) -> None:
        head = self.state.plan.model.get_output_embeddings()
        weight = getattr(head, "weight", None)
        size = weight.shape[0] if weight is not None else self.state.plan.model.config.get_text_config().vocab_size
        wrong = [token for token in ids if not 0 <= token < size]
        if wrong:
            raise ArgumentError(f"{wrong[0]} is no id of this model: its vocabulary has {size}, from 0.")

    def _chosen(self, tokens: Any, latest: Step) -> dict[int, int]:
        """The token for each row whose token is replaced."""
        live = latest.live.tolist()
        if isinstance(tokens, Mapping):
            chosen = {int(row): int(token) for row, token in tokens.items()}
        elif isinstance(tokens, (int, str)):
            ids = self._ids(tokens, None)
            if len(ids) != 1:
                raise ArgumentError(f"{tokens!r} is {len(ids)} tokens; a step has room for one.")
            chosen = {row: ids[0] for row, is_live in enumerate(live) if is_live}
        else:
            each = tokens.tolist() if isinstance(tokens, torch.Tensor) else list(tokens)
            if len(each) != len(live):
                raise ArgumentError(f"{len(each)} tokens were given for {len(live)} rows; give one for each.")
            chosen = {row: int(token) for row, token in enumerate(each) if live[row]}
        if dead := [row for row in chosen if not 0 <= row < len(live) or not live[row]]:
            raise ArgumentError(f"Row {dead[0]} took no token at this step.")
        self._in_vocabulary(list(chosen.values()))
        return chosen

    def _must_take_tokens(self, what: str) -> None:
        state = self.state
        if state.plan.method.rewinds != "ids" and not hasattr(self._search(), "stop"):
            raise UnsupportedError(f"Tokens can't be {what} with {state.plan.method.name}.")
        if (rounds := state.memory.get("rounds")) is not None and rounds.bound:
            raise UnsupportedError(f"Tokens can't be {what} with these drafts: they hang on the model's last output.")

    def _search(self) -> Any:
        """The beam search, begun if it hasn't been."""
        state = self.state
        if state.plan.method.searches is None:
            return None
        return state.recall("search", lambda: state.plan.method.searches(state))  # type: ignore[misc]

    def _waiting(self) -> int:
        """Steps that have been made, but not handed out."""
        rounds = self.state.memory.get("rounds")
        return 0 if rounds is None else len(rounds.waiting)

    def _drop_waiting(self) -> None:
        """Undoes steps that nobody has seen.

        Raises:
            StreamError: They can't be undone.
        """
        state = self.state
        if not (count := self._waiting()):
            return
        mark = state.timeline.find(state.steps - count)
        if mark is None or (reason := why_uncuttable(state, mark)) is not None:
            why = "the step is too long ago" if mark is None else reason
            raise StreamError(f"Not here, in the middle of a draft ({why}); wait for a step whose `more` is 0.")
        cut(state, mark)
        state.timeline.forget(mark.steps)
