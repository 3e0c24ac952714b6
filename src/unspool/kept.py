"""What a model keeps on itself between forwards, swapped in around ours.

Some models store state on their own modules: the position offsets of an image, a recurrent state. Two runs on
such a model would overwrite each other's, and a caller would find the model changed. So a run owns a copy,
which is in place only while it works; the model's own is put back each time.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["KeptState"]

KEPT_NAMES = ("rope_deltas", "conv1d_state", "recurrent_states", "_cached_decode_position_ids", "_prefill_len")

_left_with: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


class KeptState:
    """The state that one run's model keeps on its modules.

    Args:
        model: The model of the run.
        cache: A cache that the caller gave. If an earlier run left it, that run's state is taken up again.
    """

    def __init__(self, model: nn.Module, cache: Any = None) -> None:
        self._slots = [(module, name) for module in model.modules() for name in KEPT_NAMES if name in vars(module)]
        known = _left_with.get(cache) if cache is not None and self._slots else None
        self._values = list(known) if known else [getattr(module, name) for module, name in self._slots]

    def __bool__(self) -> bool:
        """Whether the model keeps anything at all."""
        return bool(self._slots)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the run's state on the model, and the model's own back afterwards."""
        theirs = [getattr(module, name) for module, name in self._slots]
        self._put(self._values)
        try:
            yield
        finally:
            self._values = [getattr(module, name) for module, name in self._slots]
            self._put(theirs)

    def reorder(self, index: torch.Tensor, rows: int) -> None:
        """Takes the state's rows, `rows` so far, by their index; what has another number of rows is left alone."""
        self._values = [_select(value, index, rows) for value in self._values]

    def held(self) -> tuple[Any, ...]:
        """The values, as they are."""
        return tuple(self._values)

    def hold(self, values: Sequence[Any]) -> None:
        """Takes up the values that another held.

        Raises:
            ValueError: They are not as many.
        """
        if len(values) != len(self._slots):
            raise ValueError(f"the model keeps {len(self._slots)} values, not {len(values)}")
        self._values = list(values)

    def copied(self) -> KeptState:
        """One with copies of them, for a copy of the run."""
        made = copy.copy(self)
        made._values = [copy.deepcopy(value) for value in self._values]
        return made

    def leave_with(self, cache: Any) -> None:
        """Remembers the state together with the cache it belongs to, for a run that continues from it."""
        if self._slots and cache is not None:
            _left_with[cache] = self._values

    def _put(self, values: list[Any]) -> None:
        for (module, name), value in zip(self._slots, values, strict=True):
            setattr(module, name, value)


def _select(value: Any, index: torch.Tensor, rows: int) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == rows:
        return value.index_select(0, index.to(value.device))
    return value
