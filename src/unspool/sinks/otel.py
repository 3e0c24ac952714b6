"""Traces and metrics by OpenTelemetry's conventions for generative AI.

Source: OpenTelemetry, "Semantic conventions for generative AI systems".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unspool.errors import UnsupportedError
from unspool.records import Event, Opening, Result, Step
from unspool.sinks.metrics import MetricsSink

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

__all__ = ["OtelSink"]

_REQUEST = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop_strings",
}
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


class OtelSink:
    """Makes a span of a stream, and records its duration, time to first token, time per token and token counts.

    Needs the package `opentelemetry-api` (the extra `otel`); an SDK sends what is made wherever it is told to.

    Args:
        model: The model's name, as the traces should give it.
        provider: Who runs it.
        operation: What it does: `text_completion`, `chat` ...
        tracer: Makes the span; by default the global provider's.
        meter: Makes the instruments; by default the global provider's.

    Raises:
        UnsupportedError: OpenTelemetry isn't installed.
    """

    def __init__(
        self,
        model: str,
        *,
        provider: str = "unspool",
        operation: str = "text_completion",
        tracer: Tracer | None = None,
        meter: Meter | None = None,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise UnsupportedError("OtelSink needs OpenTelemetry: pip install 'unspool[otel]'.") from error
        self._tracer = tracer or trace.get_tracer("unspool")
        self._common = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        self._name = f"{operation} {model}"
        self._instruments = _instruments(meter or metrics.get_meter("unspool"))
        self._measured = MetricsSink()
        self._span: Any = None

    def open(self, opening: Opening) -> None:
        """Begins the span."""
        self._measured.open(opening)
        given = {f"gen_ai.request.{name}": getattr(opening.config, key, None) for name, key in _REQUEST.items()}
        asked = {name: list(v) if isinstance(v, (tuple, list)) else v for name, v in given.items() if v is not None}
        choices = {} if opening.rows_per_prompt == 1 else {"gen_ai.request.choice.count": opening.rows_per_prompt}
        self._span = self._tracer.start_span(self._name, attributes={**self._common, **asked, **choices})

    def take(self, event: Event) -> None:
        """Measures a step."""
        self._measured.take(event)
        if isinstance(event, Step) and event.index == 0:
            self._span.add_event("gen_ai.first_token")

    def close(self, result: Result | None, error: BaseException | None) -> None:
        """Ends the span and records what was measured."""
        self._measured.close(result, error)
        found, common = self._measured.metrics, dict(self._common)
        if error is not None:
            common["error.type"] = type(error).__qualname__
        self._record("gen_ai.client.operation.duration", found.total, common)
        self._record("gen_ai.server.time_to_first_token", found.first_token, common)
        self._record("gen_ai.server.time_per_output_token", found.per_token, common)
        counts = {"input": found.prompt_tokens, "output": found.new_tokens}
        for kind, count in counts.items():
            self._record("gen_ai.client.token.usage", count, {**common, "gen_ai.token.type": kind})
        if self._span is not None:
            self._end_span(counts, [finish.reason.value for finish in found.finishes], error)

    def _end_span(self, counts: dict[str, int], reasons: list[str], error: BaseException | None) -> None:
        for kind, count in counts.items():
            self._span.set_attribute(f"gen_ai.usage.{kind}_tokens", count)
        self._span.set_attribute("gen_ai.response.finish_reasons", reasons)
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()

    def _record(self, name: str, value: float | None, attributes: dict[str, str]) -> None:
        if value is not None:
            self._instruments[name].record(value, attributes)


def _instruments(meter: Meter) -> dict[str, Any]:
    made = {}
    for name, unit, bounds in (
        ("gen_ai.client.operation.duration", "s", _SECONDS),
        ("gen_ai.server.time_to_first_token", "s", _SECONDS),
        ("gen_ai.server.time_per_output_token", "s", _SECONDS),
        ("gen_ai.client.token.usage", "{token}", _TOKENS),
    ):
        made[name] = meter.create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=bounds)
    return made
