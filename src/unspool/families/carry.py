"""What one run carries from a forward to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from unspool import bridge
from unspool.kept import KeptState

__all__ = ["Carry"]


@dataclass(slots=True)
class Carry:
    """What one run carries from a forward to the next. It belongs to the run alone and changes as it goes.

    Attributes:
        kwargs: The model's keywords, cache included, in the layout of transformers' `model_kwargs`.
        kept: What the model would keep on itself.
        call: The model, or its compiled forward.
        uncompiled: Whether that is compiled at its first call, which takes a while.
        direct: Whether the next inputs are built here instead of by the model's hooks.
        fixed: Inputs that are the same at every direct step.
        position: The last position ids, `(..., 1)`, on the direct path.
    """

    kwargs: dict[str, Any]
    kept: KeptState
    call: Callable[..., Any]
    uncompiled: bool = False
    direct: bool = False
    fixed: dict[str, Any] | None = None
    position: torch.Tensor | None = None

    def empty(self) -> None:
        """Lets go of all it carries."""
        self.kwargs, self.fixed, self.position = {}, None, None

    def state(self) -> tuple[str, Any] | None:
        """The cache, or the legacy state of a model without one, and its name."""
        for name in bridge.STATE_NAMES:
            if self.kwargs.get(name) is not None:
                return name, self.kwargs[name]
        return None

    @property
    def cache(self) -> Any:
        """The cache, or the legacy state of a model without one; None if there is neither."""
        found = self.state()
        return found[1] if found else None
