"""Prints text as it comes."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from unspool.detokenize import plain_tokenizer
from unspool.errors import ArgumentError
from unspool.records import Event, Finish, FinishReason, Opening, Result, TextChunk
from unspool.text import TextStream

__all__ = ["TextSink"]


class TextSink:
    """Writes the text of a run to a file object, as plain text.

    One row is written as it comes. Several rows are written by lines, each with the name of its row before it, so
    that they never mix within a line: a row's line comes when it is complete, or when the row ends.

    Args:
        file: Where to write; by default what `sys.stdout` is when the stream begins.
        tokenizer: The model's tokenizer; by default the one that the call was given.
        skip_special_tokens: Whether special tokens are left out.
        skip_prompt: Whether the prompt is left out.
        end: What is written after the text of each row.
        flush: Whether to flush after each write.

    Example:
        >>> import io
        >>> from unspool import generate_stream
        >>> sink = TextSink(io.StringIO(), tokenizer=tiny_tokenizer(), end=" (end)")
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=3).to(sink)
        >>> sink.file.getvalue().endswith(" (end)")
        True
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        tokenizer: Any = None,
        skip_special_tokens: bool = True,
        skip_prompt: bool = True,
        end: str = "\n",
        flush: bool = True,
    ) -> None:
        self.file, self._tokenizer = file, tokenizer
        self._skip_special, self._skip_prompt = skip_special_tokens, skip_prompt
        self._end, self._flush = end, flush
        self._text: TextStream | None = None
        self._lines: dict[int, str] = {}

    def open(self, opening: Opening) -> None:
        """Finds the tokenizer and, if asked to, writes the prompt.

        Raises:
            ArgumentError: There is no tokenizer.
        """
        tokenizer = self._tokenizer if self._tokenizer is not None else opening.tokenizer
        if tokenizer is None:
            raise ArgumentError("TextSink needs the model's tokenizer; pass it as `tokenizer=` to it or to the call.")
        self._out = self.file if self.file is not None else sys.stdout
        self._text = TextStream(opening, tokenizer, skip_special_tokens=self._skip_special, logprobs=False)
        self._labelled = len(self._text.rows) > 1
        if not self._skip_prompt:
            self._write_prompts(opening, plain_tokenizer(tokenizer))

    def take(self, event: Event) -> None:
        """Writes what a step makes certain."""
        assert self._text is not None  # `open` came first
        for chunk in self._text.take(event):
            self.write(chunk)

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Writes what was held."""
        if self._text is None:
            return
        if result is not None:
            for chunk in self._text.rest(result):
                self.write(chunk)
        finishes = None if result is None else result.finishes
        for chunk in self._text.finish(finishes, Finish(FinishReason.ERROR, error)):
            self.write(chunk)

    def _write_prompts(self, opening: Opening, tokenizer: Any) -> None:
        assert self._text is not None  # `open` has made it
        if not self._labelled:
            self._print(self._text.begin(0, opening.prompt_ids[0].tolist()))
            return
        for prompt, ids in enumerate(opening.prompt_ids[:: opening.rows_per_prompt].tolist()):
            text = tokenizer.decode(ids, skip_special_tokens=self._skip_special)
            self._print("".join(f"[prompt {prompt}] {line}\n" for line in text.split("\n")))

    def write(self, chunk: TextChunk) -> None:
        """Writes a piece of text, behind the label of its row where there are several."""
        if not self._labelled:
            self._print(chunk.text + (self._end if chunk.finish is not None else ""))
            return
        *whole, rest = (self._lines.pop(chunk.row, "") + chunk.text).split("\n")
        label = f"[prompt {chunk.prompt}, sample {chunk.sample}] "
        done = chunk.finish is not None
        lines = [*whole, rest] if done and (rest or not whole) else whole
        if not done:
            self._lines[chunk.row] = rest
        self._print("".join(f"{label}{line}\n" for line in lines))

    def _print(self, text: str) -> None:
        if text:
            self._out.write(text)
            if self._flush:
                self._out.flush()
