"""Generation with Hugging Face transformers as a stream of steps.

```python
from unspool import generate_stream

for step in generate_stream(model, **tokenizer("Hello", return_tensors="pt"), max_new_tokens=20):
    print(step.tokens, step.logprobs)
```

Names are imported when they are first used, so that `import unspool` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unspool.api import generate, generate_stream, prefill
    from unspool.best import best_of
    from unspool.choosing import choose
    from unspool.control.exploring import explore
    from unspool.control.resuming import resume
    from unspool.custom import custom_generate
    from unspool.decoding.registry import decoding_method
    from unspool.families.registry import register_family
    from unspool.generator import Generator
    from unspool.pipeline import Pipeline
    from unspool.pipelines import stream_pipeline
    from unspool.prompt_cache import PromptCache
    from unspool.records import (
        Beams,
        Finish,
        FinishReason,
        Opening,
        Prefilled,
        PrefillProgress,
        Result,
        Step,
        TextChunk,
    )
    from unspool.scoring import score
    from unspool.stream import Stream

__all__ = [
    "Beams",
    "Finish",
    "FinishReason",
    "Generator",
    "Opening",
    "Pipeline",
    "PrefillProgress",
    "Prefilled",
    "PromptCache",
    "Result",
    "Step",
    "Stream",
    "TextChunk",
    "best_of",
    "choose",
    "custom_generate",
    "decoding_method",
    "explore",
    "generate",
    "generate_stream",
    "prefill",
    "register_family",
    "resume",
    "score",
    "stream_pipeline",
]

_HOMES = {
    "unspool.api": ("generate", "generate_stream", "prefill"),
    "unspool.best": ("best_of",),
    "unspool.choosing": ("choose",),
    "unspool.control.exploring": ("explore",),
    "unspool.control.resuming": ("resume",),
    "unspool.custom": ("custom_generate",),
    "unspool.decoding.registry": ("decoding_method",),
    "unspool.families.registry": ("register_family",),
    "unspool.generator": ("Generator",),
    "unspool.pipeline": ("Pipeline",),
    "unspool.pipelines": ("stream_pipeline",),
    "unspool.prompt_cache": ("PromptCache",),
    "unspool.records": (
        "Beams",
        "Finish",
        "FinishReason",
        "Opening",
        "PrefillProgress",
        "Prefilled",
        "Result",
        "Step",
        "TextChunk",
    ),
    "unspool.scoring": ("score",),
    "unspool.stream": ("Stream",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("unspool")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module 'unspool' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
