"""Which of some given continuations a model finds likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

from unspool import bridge
from unspool import cache as caches
from unspool.api import prefill
from unspool.errors import ArgumentError
from unspool.scoring import Scored, score
from unspool.texts import Texts, joined

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How some options compare.

    Attributes:
        best: The index of the likeliest option.
        scores: One for each option; higher is better.
        ranking: The indices of the options, best first.
        scored: What the model makes of each option, token by token.
    """

    best: int
    scores: tuple[float, ...]
    ranking: tuple[int, ...]
    scored: Scored

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The scores as probabilities that sum to 1, as if one of the options had to be taken."""
        return tuple(torch.tensor(self.scores, dtype=torch.float64).softmax(dim=0).tolist())


def choose(
    model: PreTrainedModel,
    prompt: Texts,
    options: Texts,
    *,
    tokenizer: Any = None,
    by: str | Callable[[Scored], torch.Tensor] = "mean",
    **kwargs: Any,
) -> Choice:
    """Compares continuations of one prompt, which is read once however many there are.

    Args:
        model: The model.
        prompt: One prompt: ids or a string.
        options: The continuations: lists of ids, or strings, which get no special tokens. A string usually begins
            with the space that is between it and the prompt.
        tokenizer: The model's tokenizer, for strings.
        by: `"mean"` compares log-probabilities per token, `"sum"` those of whole options (which favours short ones),
            and a function gets the `Scored` and gives a number for each row.
        **kwargs: The model's keywords.

    Raises:
        ArgumentError: There is not one prompt, or no option, or `by` is unknown.

    Example:
        >>> choice = choose(tiny_model(), [5, 6, 7], [[8, 9], [10], [11, 12, 13]])
        >>> sorted(choice.ranking)
        [0, 1, 2]
        >>> choice.scores[choice.best] == max(choice.scores)
        True
    """
    rate = _rate(by)
    (given, *others), ends = joined(prompt, tokenizer, special=True), joined(options, tokenizer, special=False)
    if others:
        raise ArgumentError(f"choose compares continuations of one prompt; {1 + len(others)} were given.")
    scored = score(model, [given] * len(ends), ends, **_read_once(model, given, len(ends), kwargs))
    scores = tuple(float(value) for value in rate(scored))
    ranking = tuple(sorted(range(len(scores)), key=lambda option: -scores[option]))
    return Choice(best=ranking[0], scores=scores, ranking=ranking, scored=scored)


def _rate(by: str | Callable[[Scored], torch.Tensor]) -> Callable[[Scored], torch.Tensor]:
    if callable(by):
        return by
    known = {"mean": lambda scored: scored.means, "sum": lambda scored: scored.totals}
    if by not in known:
        raise ArgumentError(f"by={by!r} is no way to compare; 'mean', 'sum' or a function would do.")
    return known[by]


def _read_once(model: PreTrainedModel, given: Sequence[int], count: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords with what one reading of the prompt gives, for `count` rows."""
    ids = torch.tensor([given], device=model.device)
    if model.config.is_encoder_decoder:
        with torch.no_grad():
            encoded = model.get_encoder()(input_ids=ids, return_dict=True)
        rows = {name: value.expand(count, *value.shape[1:]) for name, value in encoded.items() if name == _ENCODED}
        return {**kwargs, "encoder_outputs": type(encoded)(**rows)}
    if bridge.is_stateful(model) or bridge.makes_own_cache(model) or len(given) < 2:
        return kwargs
    cache = prefill(model, ids, **kwargs).cache
    assert isinstance(cache, Cache)
    if not caches.can_expand(cache):
        return kwargs
    caches.expand(cache, count, 1)
    return {**kwargs, bridge.cache_name(model): cache}


_ENCODED = "last_hidden_state"
