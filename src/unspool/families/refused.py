"""Models with a `generate` that has no steps to show, and what to call instead."""

from __future__ import annotations

from typing import Any

__all__ = ["refusal"]

_FORECASTS = (
    "AutoformerForPrediction",
    "InformerForPrediction",
    "PatchTSMixerForPrediction",
    "PatchTSMixerForRegression",
    "PatchTSTForPrediction",
    "PatchTSTForRegression",
    "TimeSeriesTransformerForPrediction",
)
_REASONS = {
    **dict.fromkeys(
        _FORECASTS,
        "draws whole futures of a time series, not tokens, so there is no step to stream. "
        "Call `model.generate(...)` and read `sequences`.",
    ),
    "BarkFineModel": "fills in whole codebooks, many positions at once, so there is no step to stream. "
    "Call `BarkModel.generate(...)`, of which it is a part.",
}
_CTC = (
    "reads all frames of the sound in one forward (CTC) and doesn't decode step by step, so there is nothing to "
    "stream. Call `model.generate(...)`, or take the argmax of `model(...).logits` yourself."
)


def refusal(model: Any) -> str | None:
    """Why a model can't be streamed, and what to call instead; None if that isn't known of its kind.

    Subclasses are refused as the class of transformers that they extend.
    """
    for kind in type(model).__mro__:
        reason = _CTC if kind.__name__.endswith("ForCTC") else _REASONS.get(kind.__name__)
        if reason is not None:
            return f"{type(model).__name__} {reason}"
    return None
