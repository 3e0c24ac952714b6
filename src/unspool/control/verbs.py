"""The commands that a stream takes between two of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from unspool.records import Event, Step
from unspool.texts import Tokens

if TYPE_CHECKING:
    from unspool.control.pilot import Pilot
    from unspool.state import DecodingState
    from unspool.stream import Stream

__all__ = ["Steered"]

T = TypeVar("T")
Rows = int | Iterable[int] | None


class Steered(ABC):
    """What can be done to a stream between two steps. The base of `Stream`.

    A command is carried out when it is called, on the thread that iterates. It raises if it can't be carried out, and
    the stream then is as it was. Under beams, rows are prompts.
    """

    @abstractmethod
    def _order(self, order: Callable[[Pilot], tuple[list[Event], T]], *, retracts: bool = False) -> T:
        """Carries out a command, and hands on the events that tell of it."""

    @abstractmethod
    def _latest(self) -> Step | None:
        """The latest step, while it is the latest."""

    def stop(self, rows: Rows = None) -> None:
        """Ends some rows here, as `Finish(STOPPED)`; the others go on undisturbed.

        Args:
            rows: A row or several; all by default.

        Raises:
            ArgumentError: There is no such row.
            StreamError: The row, or the stream, has ended already.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7], [8, 9, 5]]), max_new_tokens=4)
            >>> for step in stream:
            ...     if step.index == 1:
            ...         stream.stop(0)
            >>> [finish.reason.name for finish in stream.result.finishes]
            ['STOPPED', 'MAX_LENGTH']
        """
        self._order(lambda pilot: (pilot.stop(rows), None))

    def force(self, tokens: Tokens | Mapping[int, Tokens], rows: Rows = None, *, tokenizer: Any = None) -> None:
        """Sets the next tokens of some rows; tokens forced earlier that still wait come before them.

        They go through cache, criteria and text as any others, and show in `step.forced`. Their log-probabilities are
        the model's.

        Args:
            tokens: An id, several ids, or text; or one of these for each row.
            rows: A row or several; all live ones by default.
            tokenizer: For text; by default the one that the call was given.

        Raises:
            ArgumentError: An id is not in the vocabulary, or there is no such row.
            UnsupportedError: The decoding method can't take it.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4)
            >>> first = next(stream)
            >>> stream.force([11, 12])
            >>> [(int(step.tokens), step.forced is not None) for step in stream][:2]
            [(11, True), (12, True)]
        """
        self._order(lambda pilot: (pilot.force(tokens, rows, tokenizer), None))

    def replace(self, tokens: Tokens | Mapping[int, int]) -> Step:
        """Takes another token at the latest step, as if it had been chosen; sinks get a `Retract`.

        Args:
            tokens: An id for all rows, one for each, or a mapping from rows.

        Returns:
            The step in the place of the latest one.

        Raises:
            StreamError: There is no step yet.
            ArgumentError: An id is not in the vocabulary, or a row took no token.
            SinkError: A sink can't take steps back.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3)
            >>> step = next(stream)
            >>> step = stream.replace(int(step.scores.topk(2).indices[0, 1]))
            >>> step.index, len([*stream])
            (0, 2)
        """
        latest = self._latest()
        return self._order(lambda pilot: pilot.replace(tokens, latest), retracts=True)

    @abstractmethod
    def _forked(self, states: list[DecodingState]) -> list[Any]:
        """Streams over copies of the state."""

    def fork(self, count: int = 1, *, seed: int | None = None) -> list[Stream]:
        """Streams that go on from here, each by itself: what is done to one, the others don't see.

        They share what the cache holds so far; each copies it when it first writes to it. Sinks stay with this stream.

        Args:
            count: How many.
            seed: For sampling: the first is seeded with this, the next with one more, and so on. By default each goes
                on as this stream would.

        Raises:
            ArgumentError: `count` is no number of streams.
            UnsupportedError: The decoding method can't be copied.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=4)
            >>> first = next(stream)
            >>> [branch] = stream.fork()
            >>> branch.force(11)
            >>> [int(step.tokens) for step in branch][0], len([*stream])
            (11, 3)
        """
        return self._forked(self._order(lambda pilot: ([], pilot.fork(count, seed))))

    def rewind(self, count: int = 1) -> None:
        """Goes back some steps, with everything: cache, randomness, processors, text. Sinks get a `Retract`.

        What comes then is what would have come, had the steps never been made.

        Args:
            count: How many steps.

        Raises:
            ArgumentError: There are fewer steps.
            CacheError: The cache can't be cut, and there is no snapshot; see `snapshot_every`.
            SinkError: A sink can't take steps back.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3, seed=0)
            >>> tokens = [int(step.tokens) for step in stream.steps(2)]
            >>> stream.rewind(2)
            >>> tokens == [int(step.tokens) for step in stream.steps(2)]
            True
        """
        self._order(lambda pilot: (pilot.rewind(count), None), retracts=True)
