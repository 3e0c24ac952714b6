"""Writes records as lines of JSON."""

from __future__ import annotations

from typing import Any

from unspool.sinks.lines import RecordWriter
from unspool.wire import dumps

__all__ = ["JsonlSink"]


class JsonlSink(RecordWriter):
    """Writes a line of strict JSON for every event: `type` says what it is.

    `start` comes first, with the prompt; then `prefill` and `step` (or, as asked, `text`) records; text that was held
    back as `text`; `end` or `error` comes last, with the result. Tensors are lists, NaN and the infinities null, and
    everything is escaped to ASCII, so that each line can be read alone, by any reader of JSON.

    Args:
        file: Where to write.
        tokenizer: The model's tokenizer; with it, records have text.
        records: `"steps"` or `"text"`.
        fields: Which fields of a step to tell: by default all that are small. Also `logits`, `scores`, `outputs` ...
        top_logprobs: How many of the likeliest tokens to tell for each row of a step.
        skip_special_tokens: Whether special tokens have no text.

    Raises:
        ArgumentError: An argument is wrong.

    Example:
        >>> import io, json
        >>> from unspool import generate_stream
        >>> file = io.StringIO()
        >>> sink = JsonlSink(file, fields=["index", "tokens"])
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=2, seed=0).to(sink)
        >>> records = [json.loads(line) for line in file.getvalue().splitlines()]
        >>> [record["type"] for record in records]
        ['start', 'prefill', 'prefill', 'step', 'step', 'end']
        >>> [record["tokens"] for record in records if record["type"] == "step"] == [
        ...     [token] for token in result.tokens[0].tolist()]
        True
    """

    def write(self, record: dict[str, Any]) -> None:
        """Writes a line."""
        self.file.write(dumps(record) + "\n")
