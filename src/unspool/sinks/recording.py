"""Streams in a file: recorded with everything in them, and played again without the model.

A recording is a zip archive with a member of JSON and one of safetensors for each record, in order; nothing in it is
code, and reading it runs none.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection, Generator
from typing import IO, Any

import safetensors.torch
import torch
from transformers import GenerationConfig

from unspool.errors import ArgumentError, SinkError
from unspool.fanout import AnySink
from unspool.packing import packed, unpacked
from unspool.records import Event, Finish, Opening, Result
from unspool.stream import Stream

__all__ = ["RecordSink", "replay"]

_FORMAT = "unspool recording 1"
_OPTIONAL = ("logits", "outputs")

File = str | os.PathLike[str] | IO[bytes]


class RecordSink:
    """Records a stream to a file, to be played again by `replay()`.

    Args:
        file: A path, or a file open for writing bytes.
        leave_out: What is not recorded of a step, to save room: `"logits"`, `"outputs"` or both.

    Raises:
        ArgumentError: Something else is to be left out.

    Example:
        >>> import io
        >>> from unspool import generate_stream
        >>> from unspool.sinks import RecordSink, replay
        >>> file = io.BytesIO()
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> result = generate_stream(tiny_model(), ids, max_new_tokens=3).to(RecordSink(file))
        >>> [step.index for step in replay(file)]
        [0, 1, 2]
    """

    retracts = True

    def __init__(self, file: File, *, leave_out: Collection[str] = ()) -> None:
        if unknown := set(leave_out) - set(_OPTIONAL):
            raise ArgumentError(f"leave_out={sorted(unknown)}: only {' and '.join(_OPTIONAL)} can be left out.")
        self._file, self._without = file, frozenset(leave_out)
        self._archive: zipfile.ZipFile | None = None
        self._count = 0

    def open(self, opening: Opening) -> None:
        """Begins the file."""
        self._archive = zipfile.ZipFile(self._file, "w")
        self._archive.writestr("format", _FORMAT)
        self._write(opening)

    def take(self, event: Event) -> None:
        """Records an event."""
        self._write(event)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Ends the file, with the result and what ended it."""
        if self._archive is None:
            return
        if result is not None:
            self._write(result)
        end = {} if error is None else {"error": type(error).__name__, "message": str(error)}
        self._archive.writestr("end.json", json.dumps(end))
        self._archive.close()

    def _write(self, record: Any) -> None:
        assert self._archive is not None  # `open` came first
        tensors: dict[str, torch.Tensor] = {}
        written = json.dumps(packed(record, tensors, self._without))
        name = f"{self._count:08d}"
        self._archive.writestr(f"{name}.json", written)
        if tensors:
            self._archive.writestr(f"{name}.safetensors", safetensors.torch.save(tensors))
        self._count += 1


def replay(file: File, *, tokenizer: Any = None, sinks: Collection[AnySink] = ()) -> Stream:
    """Plays a recorded stream: the same steps, with no model.

    Args:
        file: A path, or a file open for reading bytes.
        tokenizer: For text; the recording has none.
        sinks: As for `generate_stream`.

    Returns:
        A stream, with all that streams have. Where the recorded one ended in an error, this one ends in a `SinkError`
        that tells of it.

    Raises:
        ArgumentError: The file is no recording.
    """
    try:
        archive = zipfile.ZipFile(file)
        known = archive.read("format").decode() == _FORMAT
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file!r} is no recording: {error}") from error
    if not known:
        raise ArgumentError(f"{file!r} is a recording of another version; this one reads {_FORMAT!r}.")
    return Stream(_Recording(archive, tokenizer), sinks)


class _Recording:
    """The source of a stream that is played again."""

    def __init__(self, archive: zipfile.ZipFile, tokenizer: Any) -> None:
        self._archive, self.tokenizer = archive, tokenizer
        self._names = sorted(name.removesuffix(".json") for name in archive.namelist() if name[:8].isdigit())
        self._names = list(dict.fromkeys(name.split(".")[0] for name in self._names))
        self._opening: Opening | None = self._read(self._names.pop(0)) if self._names else None
        self._kept: Result | None = None
        self.result: Result | None = None

    @property
    def config(self) -> GenerationConfig | None:
        """The config of the recorded run."""
        return None if self._opening is None else self._opening.config

    @property
    def home(self) -> Any:
        """Itself: it needs no model."""
        return self

    def events(self) -> Generator[Event, Any, None]:
        """The recorded events."""
        for name in self._names:
            record = self._read(name)
            if isinstance(record, Result):
                self._kept = record
            else:
                yield record
        end = json.loads(self._archive.read("end.json")) if "end.json" in self._archive.namelist() else {}
        if "error" in end:
            raise SinkError(f"The recorded stream ended here in a {end['error']}: {end['message']}")

    def opening(self) -> Opening | None:
        """What the recorded run began with."""
        return self._opening

    def partial(self, otherwise: Finish) -> Result | None:
        """What the recorded run came to; None before its end."""
        return self._kept

    def interrupt(self) -> None:
        """Does nothing: nothing waits."""

    def release(self) -> None:
        """Closes the file."""
        self._archive.close()

    def _read(self, name: str) -> Any:
        tensors = {}
        if f"{name}.safetensors" in self._archive.namelist():
            tensors = safetensors.torch.load(self._archive.read(f"{name}.safetensors"))
        return unpacked(json.loads(self._archive.read(f"{name}.json")), tensors)
