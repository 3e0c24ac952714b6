"""What a constrained beam search has to say: phrases, choices of phrases, and how far a sequence has come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["Constraint", "DisjunctiveConstraint", "PhrasalConstraint", "Progress", "constraints_of"]


class Constraint(ABC):
    """Something that a sequence must contain, read token by token.

    The interface is that of transformers 4, so constraints written for it work here.

    Attributes:
        seqlen: The most tokens it may take.
        completed: Whether it has been fulfilled.
    """

    seqlen: int
    completed: bool = False

    @abstractmethod
    def advance(self) -> int | list[int] | None:
        """The token that brings it forward, or several of which each does; None if nothing does."""

    @abstractmethod
    def does_advance(self, token_id: int) -> bool:
        """Whether a token brings it forward."""

    @abstractmethod
    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Reads a token: whether that brought it forward, fulfilled it, or threw it back to its beginning."""

    @abstractmethod
    def reset(self) -> None:
        """Forgets what was read."""

    @abstractmethod
    def remaining(self) -> int:
        """The most tokens that are still missing."""

    @abstractmethod
    def copy(self, stateful: bool = False) -> Constraint:
        """Another of the same kind; with `stateful`, as far as this one."""


class DisjunctiveConstraint(Constraint):
    """One of several phrases.

    Args:
        nested_token_ids: The phrases, each a list of token ids. None may begin with another.

    Raises:
        ArgumentError: They are no such lists.

    Example:
        >>> either = DisjunctiveConstraint([[5, 6], [5, 7, 8]])
        >>> either.update(5), either.advance()
        ((True, False, False), [6, 7])
        >>> either.update(6), either.remaining()
        ((True, True, False), 0)
    """

    def __init__(self, nested_token_ids: list[list[int]]) -> None:
        if not isinstance(nested_token_ids, list) or not nested_token_ids:
            raise ArgumentError(f"{nested_token_ids!r} are no phrases to choose from; a list of lists of ids would do.")
        for phrase in nested_token_ids:
            _check_phrase(phrase)
        self.token_ids = nested_token_ids
        for i, phrase in enumerate(nested_token_ids):
            for other in nested_token_ids[:i] + nested_token_ids[i + 1 :]:
                if other[: len(phrase)] == phrase:
                    raise ArgumentError(f"{other} begins with {phrase}, so one of them is enough; leave the other out.")
        self.seqlen = max(map(len, nested_token_ids))
        self._read: list[int] = []

    def _following(self) -> list[int]:
        so_far = len(self._read)
        going = (phrase for phrase in self.token_ids if len(phrase) > so_far and phrase[:so_far] == self._read)
        return list(dict.fromkeys(phrase[so_far] for phrase in going))

    def advance(self) -> int | list[int] | None:
        """The tokens of which each brings it forward."""
        return self._following() or None

    def does_advance(self, token_id: int) -> bool:
        """Whether a token brings it forward."""
        return token_id in self._following()

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Reads a token."""
        stepped = self.does_advance(token_id)
        if stepped:
            self._read.append(token_id)  # in copies as well, see below
        else:
            self.reset()
        self.completed = not self._following()
        return stepped, self.completed, not stepped

    def reset(self) -> None:
        """Forgets what was read."""
        self.completed, self._read = False, []

    def remaining(self) -> int:
        """The tokens missing of the longest phrase; 0 once any is there."""
        return 0 if self.completed else self.seqlen - len(self._read)

    def at_least(self) -> int:
        """The fewest tokens that are still missing."""
        so_far = len(self._read)
        return min((len(phrase) - so_far for phrase in self.token_ids if phrase[:so_far] == self._read), default=0)

    def copy(self, stateful: bool = False) -> DisjunctiveConstraint:
        """Another one.

        With `stateful`, what either reads from there on, both have read: so transformers has it, and so, of several
        tokens that would bring a phrase forward, the later ones count as coming after the first.
        """
        twin = type(self)(self.token_ids)
        if stateful:
            twin._read, twin.completed = self._read, self.completed
        return twin


class PhrasalConstraint(Constraint):
    """A phrase.

    Args:
        token_ids: Its token ids.

    Raises:
        ArgumentError: They are no list of ids.

    Example:
        >>> phrase = PhrasalConstraint([5, 6])
        >>> phrase.update(5), phrase.advance()
        ((True, False, False), 6)
        >>> phrase.update(9), phrase.advance()
        ((False, False, True), 5)
    """

    def __init__(self, token_ids: list[int]) -> None:
        _check_phrase(token_ids)
        self.token_ids = token_ids
        self.seqlen = len(token_ids)
        self._count = 0

    def advance(self) -> int | list[int] | None:
        """The next token of the phrase."""
        return None if self.completed else self.token_ids[self._count]

    def does_advance(self, token_id: int) -> bool:
        """Whether a token is the next of the phrase."""
        return not self.completed and token_id == self.token_ids[self._count]

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Reads a token."""
        if not self.does_advance(token_id):
            self.reset()
            return False, False, True
        self._count += 1
        self.completed = self._count == self.seqlen
        return True, self.completed, False

    def reset(self) -> None:
        """Forgets what was read."""
        self.completed, self._count = False, 0

    def remaining(self) -> int:
        """The tokens missing."""
        return self.seqlen - self._count

    def copy(self, stateful: bool = False) -> PhrasalConstraint:
        """Another one; with `stateful`, as far as this one."""
        twin = type(self)(self.token_ids)
        if stateful:
            twin._count, twin.completed = self._count, self.completed
        return twin


class Progress:
    """How far a sequence has come with several constraints.

    One is worked on at a time: the first that a token begins, until it is fulfilled or another token comes.

    Args:
        constraints: The constraints; they are copied, and stay as they are.
    """

    def __init__(self, constraints: Sequence[Any]) -> None:
        self._constraints = constraints
        self._longest: int = max(constraint.seqlen for constraint in constraints)
        self._pending = [constraint.copy(stateful=False) for constraint in constraints]
        self._current: Any = None
        self._fulfilled: list[Any] = []
        self.completed = False

    def after(self, ids: Iterable[int]) -> Progress:
        """This, having read some tokens."""
        for token in ids:
            if self.completed:
                break
            self.take(token)
        return self

    def take(self, token: int) -> None:
        """Reads a token."""
        if self.completed:
            return
        if self._current is None:
            self._current = next((each for each in self._pending if each.does_advance(token)), None)
            if self._current is None:
                return
            self._pending = [each for each in self._pending if each is not self._current]
        _, fulfilled, thrown_back = self._current.update(token)
        if thrown_back:
            self._pending.append(self._current.copy(stateful=False))
        if fulfilled:
            self._fulfilled.append(self._current)
        if thrown_back or fulfilled:
            self._current = None
        self.completed = not self._pending and self._current is None

    def wanted(self) -> list[int]:
        """The tokens of which each would bring it forward."""
        if self.completed:
            return []
        found: list[int] = []
        for each in self._pending if self._current is None else [self._current]:
            tokens = each.advance()
            found.extend([] if tokens is None else tokens if isinstance(tokens, list) else [tokens])
        return found

    def bank(self) -> int:
        """How much has been said: for each constraint fulfilled as much as for the longest, and what is begun."""
        begun: int = 0 if self._current is None else self._longest - self._current.remaining()
        return len(self._fulfilled) * self._longest + begun

    def missing(self) -> int:
        """The fewest tokens that could fulfil what is left."""
        left = self._pending if self._current is None else [self._current, *self._pending]
        return sum(int(each.at_least() if hasattr(each, "at_least") else each.remaining()) for each in left)

    def copy(self) -> Progress:
        """Another one that has come as far."""
        twin = Progress(self._constraints)
        twin._fulfilled = [each.copy(stateful=True) for each in self._fulfilled]
        twin._current = None if self._current is None else self._current.copy(stateful=True)
        twin._pending = [each.copy(stateful=False) for each in self._pending]
        return twin


def constraints_of(config: GenerationConfig) -> list[Any]:
    """The constraints that a config asks for, by `constraints` and `force_words_ids`.

    Raises:
        ArgumentError: They are no constraints.
    """
    own = [] if config.constraints is None else config.constraints
    words = [] if config.force_words_ids is None else config.force_words_ids
    if not isinstance(own, (list, tuple)) or not isinstance(words, (list, tuple)) or not (own or words):
        raise ArgumentError(
            f"constraints={config.constraints!r} and force_words_ids={config.force_words_ids!r} hold nothing to say. "
            f"Give a list of constraints, or a list of phrases (lists of ids) and choices of phrases (lists of those)."
        )
    for each in own:
        missing = [name for name in _INTERFACE if not hasattr(each, name)]
        if missing:
            raise ArgumentError(f"constraints holds {each!r}, which is no constraint: it has no {', '.join(missing)}.")
    return [*own, *map(_constraint, words)]


_INTERFACE = ("advance", "does_advance", "update", "reset", "remaining", "copy", "seqlen")


def _constraint(word: Any) -> Constraint:
    nested = isinstance(word, list) and bool(word) and isinstance(word[0], list)
    return DisjunctiveConstraint(word) if nested else PhrasalConstraint(word)


def _check_phrase(ids: Any) -> None:
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ArgumentError(f"{ids!r} is no phrase; a list of token ids would do.")
    if min(ids) < 0:
        raise ArgumentError(f"{ids!r} is no phrase: token ids are not negative.")
