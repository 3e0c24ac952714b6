"""Writes sound to a file while it is being made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unspool.errors import ArgumentError
from unspool.records import Event, Opening, Result
from unspool.sound import SampleChunk, SoundReader, voice_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["AudioSink"]


class AudioSink:
    """Decodes frames of sound as they come, and writes them as WAV, or as what the name of the file says.

    The file can be listened to while it grows. What is written is what decoding everything at once would give. If the
    run fails or is left, the sound so far is there. Needs the extra `audio`.

    Args:
        file: A path, or a binary file object for sound of one row. With several rows, each has a file of its own, with
            its number behind the name: `song-0.wav`, `song-1.wav`.
        model: The model, whose codec is used.
        decode: Makes samples `(rows, channels, length)` of frames `(rows, codebooks or size, count)`, where the model
            has no codec of its own, such as a vocoder.
        sampling_rate: Samples per second of what `decode` gives.
        chunk: Seconds of sound to gather before it is decoded.
        context: How many frames before the new ones are decoded again with them; None for all, which is always exact.

    Raises:
        ArgumentError: There is nothing that makes sound of frames.
        ImportError: soundfile isn't installed.

    Attributes:
        seconds: How much has been written, of the longest row.
    """

    def __init__(
        self,
        file: Any,
        model: PreTrainedModel | None = None,
        *,
        decode: Callable[[torch.Tensor], torch.Tensor] | None = None,
        sampling_rate: int | None = None,
        chunk: float = 1.0,
        context: int | None = None,
    ) -> None:
        try:
            import soundfile
        except ImportError as error:
            raise ImportError("AudioSink needs soundfile: pip install 'unspool[audio]'.") from error
        self._write_to, self._file = soundfile.SoundFile, file
        self._voice = voice_of(model, decode, sampling_rate)
        self._reader = SoundReader(self._voice, chunk=chunk, context=context)
        self._files: list[Any] = []
        self._written: list[int] = []

    @property
    def seconds(self) -> float:
        """How much has been written, of the longest row."""
        return max(self._written, default=0) / self._voice.sampling_rate

    def open(self, opening: Opening) -> None:
        """Nothing: how many channels there are is known with the first samples."""

    def take(self, event: Event) -> None:
        """Writes what is certain now."""
        for chunk in self._reader.take(event):
            self._write(chunk)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Writes the rest, and closes the files."""
        try:
            for chunk in self._reader.finish():
                self._write(chunk)
        finally:
            for file in self._files:
                file.close()

    def _write(self, chunk: SampleChunk) -> None:
        if not self._files:
            self._files = [self._opened(row, chunk) for row in range(chunk.samples.shape[0])]
            self._written = [0] * len(self._files)
        for row, (file, samples, length) in enumerate(zip(self._files, chunk.samples, chunk.lengths, strict=True)):
            own = samples[:, : max(0, length - chunk.start)]
            file.write(own.T.contiguous().numpy())
            file.flush()
            self._written[row] += own.shape[1]

    def _opened(self, row: int, chunk: SampleChunk) -> Any:
        rows, channels, _ = chunk.samples.shape
        how = {"mode": "w", "samplerate": chunk.sampling_rate, "channels": channels}
        if not isinstance(self._file, (str, Path)):
            if rows > 1:
                raise ArgumentError(f"The stream has {rows} rows, of which each needs a file; pass a path.")
            return self._write_to(self._file, format="WAV", subtype="FLOAT", **how)
        path = Path(self._file)
        named = path if rows == 1 else path.with_name(f"{path.stem}-{row}{path.suffix}")
        subtype = {"subtype": "FLOAT"} if path.suffix.lower() == ".wav" else {}
        return self._write_to(str(named), **how, **subtype)
