"""The tree of the likeliest continuations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from rich.tree import Tree

    from unspool.stream import Stream

__all__ = ["Continuation", "explore"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that may come next, and what may come after it.

    Attributes:
        token: Its id; None for the root, where the stream stands.
        text: Its text, if there is a tokenizer.
        logprob: Its log-probability, given those before it.
        total: The log-probability of all tokens from the root to it.
        children: What may come next, the likeliest first; none where the tree ends, or the row.
    """

    token: int | None
    text: str
    logprob: float
    total: float
    children: tuple[Continuation, ...] = ()

    @property
    def probability(self) -> float:
        """How likely all tokens from the root to this one are."""
        return math.exp(self.total)

    def paths(self) -> list[tuple[tuple[int, ...], float]]:
        """The ids of each continuation to its end, and how likely it is; the likeliest first."""
        if not self.children:
            return [(() if self.token is None else (self.token,), self.probability)]
        own = () if self.token is None else (self.token,)
        every = [((*own, *ids), probability) for child in self.children for ids, probability in child.paths()]
        return sorted(every, key=lambda path: -path[1])

    def __rich__(self) -> Tree:
        """The tree as rich draws it."""
        from rich.text import Text
        from rich.tree import Tree

        label = "here" if self.token is None else f"{self.text or self.token!r} {math.exp(self.logprob):.0%}"
        tree = Tree(Text(label))
        for child in self.children:
            tree.children.append(child.__rich__())
        return tree


def explore(stream: Stream, width: int = 3, depth: int = 3, *, tokenizer: Any = None) -> Continuation:
    """The tree of the `width` likeliest tokens at each of the next `depth` places, from forks of a stream.

    The stream itself stays where it is.

    Args:
        stream: A stream of one row, between two steps.
        width: How many tokens at each place.
        depth: How many places.
        tokenizer: Gives the tokens' text.

    Returns:
        The root. `rich.print` draws the tree.

    Raises:
        ArgumentError: `width` or `depth` is no number from 1 on, or the stream has several rows.
        UnsupportedError: The decoding method can't be forked.

    Example:
        >>> from unspool import generate_stream
        >>> stream = generate_stream(tiny_model(), torch.tensor([[5, 6, 7]]), max_new_tokens=8)
        >>> root = explore(stream, width=2, depth=2)
        >>> len(root.paths()), root.children[0].logprob >= root.children[1].logprob
        (4, True)
    """
    for name, value in (("width", width), ("depth", depth)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}={value!r} is no number from 1 on.")
    [here] = stream.fork()
    return Continuation(None, "", 0.0, 0.0, _children(here, width, depth, 0.0, tokenizer))


def _children(here: Stream, width: int, depth: int, total: float, tokenizer: Any) -> tuple[Continuation, ...]:
    """What may come next, where a stream stands."""
    [probe] = here.fork()
    step = next(probe, None)
    probe.close()
    if step is None:
        return ()
    if step.rows != 1 or step.beams is not None:
        raise ArgumentError(f"explore takes a stream of one row; this one has {step.rows}.")
    logprobs, tokens = torch.log_softmax(step.scores[0], dim=-1).topk(min(width, step.scores.shape[-1]))
    found = []
    for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        text = "" if tokenizer is None else tokenizer.decode([token])
        after: tuple[Continuation, ...] = ()
        if depth > 1:
            [branch] = here.fork()
            branch.force(token)
            ended = next(branch).ended
            after = () if ended else _children(branch, width, depth - 1, total + logprob, tokenizer)
            branch.close()
        found.append(Continuation(token, text, logprob, total + logprob, after))
    return tuple(found)
