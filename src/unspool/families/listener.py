"""What is heard of a run inside of a class's own `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from unspool.records import Event, Finish, Opening, Result, Step

if TYPE_CHECKING:
    from unspool.plan import Request

__all__ = ["Listener"]


class Listener:
    """Listens to one run. The common loop may be begun many times in it, for some rows or all.

    What it makes of the steps of these loops is one stream. This one only numbers them on.

    Args:
        request: What the caller asked for.
    """

    taps: ClassVar[tuple[str, ...]] = ()
    """Methods of the model whose calls are heard."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.index = 0
        """The index of the next step."""

    def before(self, name: str, given: Mapping[str, Any]) -> Iterable[Event]:
        """A method is called: what to tell of it.

        Args:
            name: The method.
            given: Its arguments, by name.
        """
        return ()

    def after(self, name: str, given: Mapping[str, Any], made: Any) -> Iterable[Event]:
        """A method has returned: what to tell of it."""
        return ()

    def begins(self, opening: Opening) -> Iterable[Event]:
        """The common loop begins: what to tell of it."""
        return ()

    def opening(self, opening: Opening) -> Opening:
        """The first loop's opening, as that of the whole run."""
        return opening

    def shown(self, event: Event) -> Event:
        """An event of a loop, as one of the whole run."""
        if not isinstance(event, Step):
            return event
        self.index += 1
        return event if event.index == self.index - 1 else replace(event, index=self.index - 1)

    def result(self, last: Result, otherwise: Finish) -> Result:
        """What the run has come to.

        Args:
            last: What the latest loop has come to.
            otherwise: How rows end that have not ended.
        """
        return replace(last, steps=self.index)
