"""Writes records as server-sent events.

The format is that of the HTML standard, chapter "Server-sent events".
"""

from __future__ import annotations

from typing import Any

from unspool.sinks.lines import RecordWriter
from unspool.wire import dumps

__all__ = ["SseSink", "encode_comment", "encode_event"]


def encode_event(data: str, *, event: str | None = None, id: str | int | None = None) -> str:
    r"""One event, as it goes over the wire.

    Args:
        data: What it says; may have several lines.
        event: Its name.
        id: What a client that comes back says it saw last.

    Example:
        >>> encode_event("one\ntwo", event="note", id=3)
        'id: 3\nevent: note\ndata: one\ndata: two\n\n'
    """
    lines = [] if id is None else [f"id: {id}"]
    if event is not None:
        lines.append(f"event: {event}")
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return "\n".join(lines) + "\n\n"


def encode_comment(text: str) -> str:
    """A comment: clients skip it, and whoever is in between sees that the connection lives."""
    return f": {text}\n"  # without a blank line: some clients make an empty event of that


class SseSink(RecordWriter):
    r"""Writes a server-sent event for every event: its name is the record's `type`, its data one line of JSON.

    The names are `start`, `step` or `text`, `end` and `error`; ids count from 0. The progress of a long prompt is a
    comment, which keeps the connection alive. The arguments are those of `JsonlSink`.

    Example:
        >>> import io
        >>> from unspool import generate_stream
        >>> file = io.StringIO()
        >>> sink = SseSink(file, fields=["index"])
        >>> result = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=1).to(sink)
        >>> print(file.getvalue().replace("\n\n", "\n"))
        id: 0
        event: start
        data: {"type":"start",...}
        : prefill 0/3
        : prefill 3/3
        id: 1
        event: step
        data: {"type":"step","index":0}
        id: 2
        event: end
        data: {"type":"end",...}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._count = 0

    def write(self, record: dict[str, Any]) -> None:
        """Writes an event, or a comment for what is no more than a sign of life."""
        if record["type"] == "prefill":
            self.file.write(encode_comment(f"prefill {record['done']}/{record['total']}"))
        else:
            self.file.write(encode_event(dumps(record), event=record["type"], id=self._count))
            self._count += 1
        self.file.flush()
