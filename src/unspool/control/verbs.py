"""The commands that a stream takes between two of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unspool.control.commands import Command, Force, Replace, Rewind, Stop, Update
from unspool.control.interventions import Function, Intervention, Interventions, find_layer
from unspool.errors import ArgumentError
from unspool.records import Event, Step
from unspool.texts import Tokens

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

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

    def send(self, command: Command) -> Step:
        """Carries out a command that is at hand as a record, and gives the next step.

        Args:
            command: A `Stop`, `Force`, `Replace`, `Rewind` or `Update` of `unspool.control.commands`.

        Raises:
            ArgumentError: It is no command.
            StopIteration: There is no next step.

        Example:
            >>> from unspool import generate_stream
            >>> from unspool.control.commands import Force
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3)
            >>> int(stream.send(Force(11)).tokens)
            11
        """
        match command:
            case Stop(rows):
                self.stop(rows)
            case Force(tokens, rows):
                self.force(tokens, rows)
            case Replace(tokens):
                self.replace(tokens)
            case Rewind(count):
                self.rewind(count)
            case Update(settings, rows):
                self.update(rows, **settings)
            case _:
                raise ArgumentError(f"{command!r} is no command; a Stop, Force, Replace, Rewind or Update would do.")
        return next(self)

    @abstractmethod
    def __next__(self) -> Step:
        """The next step."""

    @abstractmethod
    def _model_and_interventions(self) -> tuple[PreTrainedModel, Interventions]:
        """The model, and what is done to its activations."""

    def intervene(
        self, layer: int | str | nn.Module, function: Function, from_step: int = 0, to_step: int | None = None
    ) -> Intervention:
        """Has a function read, or change, what a layer gives. Only this stream's forwards are touched.

        Args:
            layer: The number of a decoder layer, the name of a module of the model, or the module.
            function: `(hidden, step) -> hidden or None`. Hidden states are `(rows, positions, size)`: those of
                the prompt for step 0, if the function is there before the prompt is read.
            from_step: The first step for whose forward it is called.
            to_step: The first one for which it isn't any more; None for never.

        Returns:
            The intervention, to be taken away with `remove()`.

        Raises:
            ArgumentError: There is no such layer.

        Example:
            >>> from unspool import generate_stream
            >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3)
            >>> shapes = []
            >>> taken = stream.intervene(0, lambda hidden, step: shapes.append((step, hidden.shape[1])))
            >>> len([*stream]), shapes
            (3, [(0, 3), (1, 1), (2, 1)])
        """
        model, interventions = self._model_and_interventions()
        made = Intervention(find_layer(model, layer), function, from_step, to_step)
        interventions.held.append(made)
        return made

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

    def update(self, rows: Rows = None, **settings: Any) -> None:
        """Changes settings from the next step on, for all rows or some.

        Args:
            rows: A row or several; all by default.
            **settings: Temperature and other warpers, penalties, lengths, `stop_strings` and the like, by the names of
                `GenerationConfig`; for all rows also `logits_processor` and `stopping_criteria`.

        Raises:
            ArgumentError: A setting is unknown, wrong, or can't differ from row to row.
            UnsupportedError: It can't be changed once a stream has begun.

        Example:
            >>> from unspool import generate_stream
            >>> ids = torch.tensor([[5, 6, 7], [8, 9, 5]])
            >>> stream = generate_stream(tiny_model(), ids, max_new_tokens=4, do_sample=True, seed=0)
            >>> first = next(stream)
            >>> stream.update(temperature=0.5)
            >>> stream.update(rows=1, max_new_tokens=2)
            >>> [int(step.live.sum()) for step in stream]
            [2, 1, 1]
        """
        self._order(lambda pilot: (pilot.update(rows, settings), None))

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

    def save(self, path: str | Path) -> None:
        """Writes all of the stream to a file, from which `resume` goes on, in another process too.

        The file is in the safetensors format, with everything that is no tensor as JSON in its header. The stream can
        be gone on with. What processors and criteria of your own remember is not written.

        Args:
            path: Where to write.

        Raises:
            UnsupportedError: The method, the cache or an input can't be written.

        Example:
            >>> import tempfile
            >>> from unspool import generate_stream, resume
            >>> model = tiny_model()
            >>> stream = generate_stream(model, torch.tensor([[5, 6, 7]]), max_new_tokens=4)
            >>> first = next(stream)
            >>> with tempfile.NamedTemporaryFile() as file:
            ...     stream.save(file.name)
            ...     again = resume(model, file.name)
            >>> [int(step.tokens) for step in again] == [int(step.tokens) for step in stream]
            True
        """

        def order(pilot: Pilot) -> tuple[list[Event], None]:
            pilot.save(path)
            return [], None

        self._order(order)

    def rewind(self, count: int = 1) -> None:
        """Goes back some steps, with everything: cache, randomness, processors, text. Sinks get a `Retract`.

        What comes then is what would have come, had the steps never been made; commands given after the step that it
        goes back to are undone, too.

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
