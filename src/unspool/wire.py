"""Records as plain data: what JSON can say, exactly or not at all.

Numbers that JSON doesn't know (NaN, the infinities) become null. Text is escaped to ASCII, so that a record is one
line whatever it holds, line separators and lone surrogates included.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from unspool.errors import ArgumentError
from unspool.events import Change
from unspool.records import Beams, Event, Finish, FinishReason, Opening, PrefillProgress, Result, Step, TextChunk

__all__ = ["STEP_FIELDS", "Wire", "dumps", "plain"]

STEP_FIELDS = ("index", "forward", "tokens", "live", "logprobs", "ended", "drafted", "positions", "beams")
"""What is told of a step unless fields are chosen."""

_MORE_FIELDS = ("more", "forced", "logits", "scores", "outputs", "rows_per_prompt", "top_logprobs", "text")


def dumps(record: Mapping[str, Any]) -> str:
    r"""A record as one line of strict JSON, in ASCII.

    Example:
        >>> dumps({"text": "é\n", "logprob": float("-inf")})
        '{"text":"\\u00e9\\n","logprob":null}'
    """
    return json.dumps(plain(record), allow_nan=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """A value as JSON knows it: tensors as lists, other numbers than finite ones as None, the unknown as text."""
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case str():
            return str(value)
        case float():
            return value if math.isfinite(value) else None
        case torch.Tensor():
            return plain(value.tolist())
        case Finish():
            return {"reason": value.reason.value, "detail": _detail(value.detail)}
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case range():
            return [value.start, value.stop]
        case list() | tuple():
            return [plain(item) for item in value]
    return str(value)


def _detail(detail: Any) -> Any:
    """What a row ended on; of an exception its kind only, since messages may tell what they shouldn't."""
    return type(detail).__name__ if isinstance(detail, BaseException) else plain(detail)


class Wire:
    """Makes plain data of records.

    Args:
        fields: Which fields of a step to tell; all of `STEP_FIELDS` by default. Any field of `Step` can be named, and
            `top_logprobs`.
        top_logprobs: How many of the likeliest tokens to tell for each row.
        tokenizer: Gives the tokens' text.
        tells_errors: Whether errors are told by kind and message; if not, only that there was one.

    Raises:
        ArgumentError: A field is unknown, or `top_logprobs` no number of tokens.
    """

    def __init__(
        self,
        fields: Collection[str] | None = None,
        top_logprobs: int = 0,
        tokenizer: Any = None,
        *,
        tells_errors: bool = True,
    ) -> None:
        known = (*STEP_FIELDS, *_MORE_FIELDS)
        unknown = [name for name in fields or () if name not in known]
        if unknown or isinstance(fields, str):
            raise ArgumentError(f"fields={fields!r}: a list of {', '.join(known)} would do.")
        if isinstance(top_logprobs, bool) or not isinstance(top_logprobs, int) or top_logprobs < 0:
            raise ArgumentError(f"top_logprobs={top_logprobs!r} is no number of tokens; 0 or more would do.")
        self._fields = STEP_FIELDS if fields is None else tuple(fields)
        if top_logprobs and "top_logprobs" not in self._fields:
            self._fields = (*self._fields, "top_logprobs")
        self._top, self._tokenizer, self._tells_errors = top_logprobs or 5, tokenizer, tells_errors

    def opening(self, opening: Opening) -> dict[str, Any]:
        """What a run began with."""
        return {
            "type": "start",
            "prompt_ids": plain(opening.prompt_ids),
            "rows_per_prompt": opening.rows_per_prompt,
            "method": opening.method,
        }

    def event(self, event: Event) -> dict[str, Any]:
        """A step, the progress of the prompt, or what else a model tells of its work."""
        if isinstance(event, PrefillProgress):
            return {"type": "prefill", "done": event.done, "total": event.total, "reused": event.reused}
        if isinstance(event, Change):
            return {"type": "change", "rows": event.rows, "config": plain(event.config.to_diff_dict())}
        if not isinstance(event, Step):
            told = {each.name: plain(getattr(event, each.name)) for each in dataclasses.fields(event)}
            return {"type": type(event).__name__.lower(), **told}
        return {"type": "step", **{name: self._field(event, name) for name in self._fields if name != "text"}}

    def chunk(self, chunk: TextChunk) -> dict[str, Any]:
        """A piece of text."""
        names = ("row", "prompt", "sample", "text", "ids", "logprobs", "finish")
        record = {"type": "text", **{name: plain(getattr(chunk, name)) for name in names}}
        if chunk.back:
            record["back"] = chunk.back
        if not self._tells_errors and chunk.finish is not None and chunk.finish.reason is FinishReason.ERROR:
            record["finish"]["detail"] = None
        return record

    def result(self, result: Result | None, error: BaseException | None) -> dict[str, Any]:
        """How a run ended: type `end`, or `error` with the kind of the error and its message."""
        end: dict[str, Any] = {"type": "end" if error is None else "error"}
        if error is not None and self._tells_errors:
            end |= {"error": type(error).__name__, "message": str(error)}
        elif error is not None:
            return {**end, "error": "internal", "message": "The generation failed."}
        if result is not None:
            counts = ("steps", "forwards", "drafted", "accepted", "complete")
            end |= {name: getattr(result, name) for name in counts}
            end |= {"finishes": plain(result.finishes), "sequences": plain(result.sequences)}
            if result.sequences_scores is not None:
                end["sequences_scores"] = plain(result.sequences_scores)
        return end

    def _field(self, step: Step, name: str) -> Any:
        if name == "top_logprobs":
            return self._likeliest(step)
        if name == "beams":
            return None if step.beams is None else _beams(step.beams)
        return plain(getattr(step, name))

    def _likeliest(self, step: Step) -> list[list[dict[str, Any]]]:
        scores = step.scores if step.beams is None else step.scores.index_select(0, step.beams.parents)
        count = min(self._top, scores.shape[-1])
        best, ids = torch.log_softmax(scores, dim=-1).topk(count, dim=-1)
        rows: Sequence[tuple[list[int], list[float]]] = list(zip(ids.tolist(), best.tolist(), strict=True))
        return [[self._token(*pair) for pair in zip(*row, strict=True)] for row in rows]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = {} if self._tokenizer is None else {"text": self._tokenizer.decode([token])}
        return {"id": token, **text, "logprob": plain(logprob)}


def _beams(beams: Beams) -> dict[str, Any]:
    names = ("parents", "tokens", "scores", "finished_scores", "finished_lengths", "settled", "agreed")
    return {name: plain(getattr(beams, name)) for name in names}
