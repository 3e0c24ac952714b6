"""Text out of transformers' pipelines while it is made.

A pipeline prepares its inputs, calls `model.generate()`, and makes something of what comes back. Here it prepares
them, and at its call of `generate()` a stream is made of the same arguments instead.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import anyio
from transformers import TextToAudioPipeline

from unspool import bridge
from unspool.api import generate_stream
from unspool.errors import ArgumentError, StreamError, UnsupportedError
from unspool.fanout import AnySink
from unspool.records import Result, TextChunk
from unspool.views import View

if TYPE_CHECKING:
    from transformers import Pipeline

    from unspool.stream import Stream

__all__ = ["PipelineStream", "astream_pipeline", "stream_pipeline"]


def stream_pipeline(
    pipe: Pipeline,
    inputs: Any = None,
    *,
    batch_size: int | None = None,
    skip_special_tokens: bool = True,
    seed: int | None = None,
    **kwargs: Any,
) -> PipelineStream:
    """Runs a pipeline as a stream of text.

    Works with the pipelines that write text by `model.generate()`: text generation, chat messages included, images and
    text to text, speech recognition. The pipeline is used as it is, and left so; nothing of it is copied.

    Args:
        pipe: The pipeline.
        inputs: What it takes: a text, a chat, an image with text, sound; or a list, generator or data set of such.
        batch_size: How many inputs to run at once.
        skip_special_tokens: Whether special tokens have no text.
        seed: Gives the generation a source of randomness of its own.
        **kwargs: What the pipeline takes: settings of `generate()`, and the rest.

    Returns:
        An iterator of text chunks, for `for` and `async for`. `chunk.prompt` is the number of the input; `chunk.row`
        counts the rows of all inputs.

    Raises:
        ArgumentError: Several inputs are given in another way than as a list.
        UnsupportedError: The pipeline doesn't write text by `model.generate()`, or puts text together afterwards.

    Example:
        >>> from transformers import pipeline
        >>> pipe = pipeline("text-generation", tiny_model(), tokenizer=tiny_tokenizer())
        >>> text = "".join(chunk.text for chunk in stream_pipeline(pipe, "w5 w6", max_new_tokens=4, do_sample=False))
        >>> pipe("w5 w6", max_new_tokens=4, do_sample=False)[0]["generated_text"].endswith(text)
        True
    """
    if isinstance(pipe, TextToAudioPipeline) or not (pipe.tokenizer or getattr(pipe, "processor", None)):
        raise UnsupportedError(f"A pipeline for {pipe.task!r} makes no text to stream; see generate_stream.")
    if kwargs.get("chunk_length_s") or bridge.pipeline_setting(pipe, "chunk_length_s"):
        raise UnsupportedError(
            "chunk_length_s makes pieces that overlap, whose texts are put together when all are there. Leave it out: "
            "models for long sound, such as Whisper, read it window by window themselves."
        )
    for name in ("text", "images"):
        if isinstance(kwargs.get(name), (list, tuple)) and inputs is None and not _is_chat(kwargs[name]):
            raise ArgumentError(f"{name} holds several inputs; give them as `inputs`, a list of dicts with that key.")
    return PipelineStream(pipe, inputs, batch_size, skip_special_tokens, {"seed": seed}, kwargs)


def astream_pipeline(pipe: Pipeline, inputs: Any = None, **kwargs: Any) -> PipelineStream:
    """The same, for `async for`: preparing runs off the event loop, the model on a thread of its own.

    Args:
        pipe: The pipeline.
        inputs: As for `stream_pipeline`.
        **kwargs: As for `stream_pipeline`.
    """
    return stream_pipeline(pipe, inputs, **kwargs)


class PipelineStream(Iterator[TextChunk], AsyncIterator[TextChunk]):
    """The text of a pipeline's inputs, one after the other; made by `stream_pipeline`."""

    def __init__(
        self,
        pipe: Pipeline,
        inputs: Any,
        batch_size: int | None,
        skip_special_tokens: bool,
        engine: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._pipe, self._engine, self._kwargs = pipe, engine, kwargs
        self._skip_special = skip_special_tokens
        size = batch_size or bridge.pipeline_setting(pipe, "batch_size") or 1
        self._batches = _batches(inputs, size)
        self._stream: Stream | None = None
        self._text: View[TextChunk] | None = None
        self._prompts = self._rows = 0
        self._last = (0, 0)
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TextChunk:
        while True:
            if self._text is None:
                self._text = self._next_text()
            chunk = next(self._text, None)
            if chunk is not None:
                return self._counted(chunk)
            self._end_batch()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextChunk:
        while True:
            if self._text is None:
                made = await anyio.to_thread.run_sync(self._next_text_or_none)
                if made is None:
                    raise StopAsyncIteration
                self._text = made
            try:
                return self._counted(await anext(self._text))
            except StopAsyncIteration:
                self._end_batch()

    def to(self, *sinks: AnySink) -> Result:
        """Runs the pipeline for its one input (or one batch) into some sinks, and returns the result.

        Raises:
            StreamError: There is more than one batch of inputs, and sinks take one stream.

        Example:
            >>> from transformers import pipeline
            >>> from unspool.sinks import TextSink
            >>> pipe = pipeline("text-generation", tiny_model(), tokenizer=tiny_tokenizer())
            >>> result = stream_pipeline(pipe, "w5 w6", max_new_tokens=3, do_sample=False).to(TextSink())
            w17 w17 <start>
        """
        self._next_text()
        if self._next_batch() is not None:
            raise StreamError("Sinks take one stream, and each batch is one: raise batch_size, or iterate.")
        assert self._stream is not None  # `_next_text` made it
        return self._stream.to(*sinks)

    def close(self) -> None:
        """Leaves it."""
        self._over, self._text = True, None
        if self._stream is not None:
            self._stream.close()

    def _next_text(self) -> View[TextChunk]:
        batch = None if self._over else self._next_batch()
        if batch is None:
            self._over = True
            raise StopIteration
        self._stream = self._made_of(batch[0])
        return self._stream.text(skip_special_tokens=self._skip_special)

    def _next_text_or_none(self) -> View[TextChunk] | None:
        try:
            return self._next_text()
        except StopIteration:
            return None

    def _next_batch(self) -> tuple[Any] | None:
        return next(self._batches, None)

    def _made_of(self, inputs: Any) -> Stream:
        """The stream of what the pipeline calls `generate()` with."""
        again = copy.copy(self._pipe)
        again.model = _Catching(self._pipe.model)
        args = [] if inputs is None else [inputs]
        if isinstance(inputs, list) and len(inputs) > 1:
            self._kwargs = {**self._kwargs, "batch_size": len(inputs)}
        try:
            again(*args, **self._kwargs)
        except _Caught as caught:
            tokenizer = {"tokenizer": self._pipe.tokenizer or self._pipe.processor.tokenizer}
            return generate_stream(self._pipe.model, *caught.args, **{**tokenizer, **self._engine, **caught.kwargs})
        raise UnsupportedError(f"A pipeline for {self._pipe.task!r} doesn't write text by `model.generate()`.")

    def _counted(self, chunk: TextChunk) -> TextChunk:
        self._last = max(self._last, (chunk.prompt, chunk.row))
        return replace(chunk, row=chunk.row + self._rows, prompt=chunk.prompt + self._prompts)

    def _end_batch(self) -> None:
        prompt, row = self._last
        self._prompts, self._rows, self._last = self._prompts + prompt + 1, self._rows + row + 1, (0, 0)
        self._text = None


class _Caught(BaseException):
    """The call of `generate()` that a pipeline has come to; passes through whatever catches errors there."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(*args)
        self.kwargs = kwargs


class _Catching:
    """Stands for a pipeline's model up to its call of `generate()`."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Gets no further."""
        raise _Caught(args, kwargs)


def _batches(inputs: Any, size: int) -> Iterator[tuple[Any]]:
    """The inputs, so many at a time: alone as they are, several as a list."""
    if _is_one(inputs):
        yield (inputs,)
        return
    items = (inputs[i] for i in range(len(inputs))) if hasattr(inputs, "__getitem__") else iter(inputs)
    while batch := list(islice(items, size)):
        yield (batch if len(batch) > 1 else batch[0],)


def _is_one(inputs: Any) -> bool:
    several = isinstance(inputs, (list, tuple)) or (
        isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes, Mapping)) and not _is_array(inputs)
    )
    return not several or _is_chat(inputs)


def _is_array(inputs: Any) -> bool:
    return hasattr(inputs, "shape") or hasattr(inputs, "getexif")


def _is_chat(inputs: Any) -> bool:
    if not isinstance(inputs, (list, tuple)) or not inputs:
        return False
    return isinstance(inputs[0], Mapping) and "role" in inputs[0]
