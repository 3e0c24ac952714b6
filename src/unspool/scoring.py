"""How likely a model finds a text: log-probabilities, token by token, without generating anything.

The text is read as a prompt is, by the same stages and in chunks, so that memory stays flat however long it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from unspool import bridge
from unspool import outputs as outputs_of
from unspool.errors import ArgumentError
from unspool.pipeline import Pipeline
from unspool.plan import Constraints, ModelInputs, Plan, Request
from unspool.records import PrefillProgress, Step
from unspool.stages.decode import decode_nothing
from unspool.stages.prefill import begin_state, read
from unspool.state import DecodingState
from unspool.texts import Texts, joined, padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Scored", "score", "score_stream"]

_CHUNK = 512  # positions


@dataclass(frozen=True, slots=True)
class Scored:
    """What a model makes of some texts. Rows are texts; shorter ones are filled up at the right.

    Attributes:
        ids: int64, `(rows, length)`: the tokens.
        mask: bool, `(rows, length)`: those that were scored: not the prompt, the filling, or a first token.
        logprobs: float32, `(rows, length)`: their log-probabilities, given all before them; 0 where none was scored.
        entropy: float32, `(rows, length)`: of the distribution each was taken from, in nats; None if not asked for.
        ranks: int64, `(rows, length)`: 1 for the likeliest token; None if not asked for.
        top_ids: int64, `(rows, length, count)`: the likeliest tokens there; None if not asked for.
        top_logprobs: float32, of the same shape: theirs.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None

    @property
    def counts(self) -> torch.Tensor:
        """How many tokens of each row were scored: int64, `(rows,)`."""
        return self.mask.sum(dim=1)

    @property
    def totals(self) -> torch.Tensor:
        """The log-probability of each row: float32, `(rows,)`."""
        return self.logprobs.sum(dim=1)

    @property
    def means(self) -> torch.Tensor:
        """The same for each token: float32, `(rows,)`; NaN for a row without any."""
        return self.totals / self.counts

    @property
    def perplexities(self) -> torch.Tensor:
        """`exp(-mean)`: float32, `(rows,)`."""
        return torch.exp(-self.means)


def score(
    model: PreTrainedModel,
    inputs: Texts,
    continuation: Texts | None = None,
    *,
    tokenizer: Any = None,
    entropy: bool = False,
    ranks: bool = False,
    top_logprobs: int = 0,
    chunk_size: int | None = _CHUNK,
    **kwargs: Any,
) -> Scored:
    """The log-probabilities of texts, or of continuations of prompts.

    Args:
        model: A model that generates.
        inputs: The texts, or the prompts (of an encoder-decoder model: what the encoder reads): ids `(rows, length)`
            with an `attention_mask` if they are padded, lists of ids, or strings.
        continuation: What follows each prompt, in one of these forms. Without it, the texts themselves are scored,
            all but the first token of each.
        tokenizer: The model's tokenizer, for strings. Continuations get no special tokens.
        entropy: Whether to give the entropy at each position.
        ranks: Whether to give the rank of each token.
        top_logprobs: How many of the likeliest tokens to give at each position.
        chunk_size: Positions that a decoder-only model reads at once; None for all. Memory grows with it, not with
            the length of the text. Recurrent models and encoder-decoders read all at once.
        **kwargs: The model's keywords, such as `attention_mask` or `pixel_values`.

    Raises:
        ArgumentError: An argument is wrong.

    Example:
        >>> scored = score(tiny_model(), [[5, 6, 7, 8]])
        >>> scored.mask.tolist()
        [[False, True, True, True]]
        >>> tuple(scored.logprobs.shape)
        (1, 4)
    """
    if top_logprobs < 0:
        raise ArgumentError(f"top_logprobs={top_logprobs} is no number of tokens; give 0 or more.")
    reading = _Reading(model, inputs, continuation, tokenizer, chunk_size, kwargs)
    parts: list[dict[str, torch.Tensor]] = []
    for logits, targets in reading.logits():
        parts.append(_measured(logits, targets, entropy=entropy, ranks=ranks, top=top_logprobs))
    found = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]} if parts else {}
    return reading.scored(found)


def score_stream(
    model: PreTrainedModel,
    inputs: Texts,
    continuation: Texts | None = None,
    *,
    tokenizer: Any = None,
    chunk_size: int | None = _CHUNK,
    **kwargs: Any,
) -> Iterator[Step]:
    """The same position by position: a step for each token, as if it were being generated.

    Args:
        model: As for `score`.
        inputs: As for `score`.
        continuation: As for `score`.
        tokenizer: As for `score`.
        chunk_size: As for `score`.
        **kwargs: As for `score`; `output_hidden_states` and its kin are seen in `step.outputs`.

    Returns:
        An iterator of steps. `live` says which rows have a token there that is scored.

    Example:
        >>> for step in score_stream(tiny_model(), [[5, 6, 7]]):
        ...     print(step.tokens.tolist(), step.logprobs.shape[0])
        [6] 1
        [7] 1
    """
    return _Reading(model, inputs, continuation, tokenizer, chunk_size, kwargs).steps()


def _measured(
    logits: torch.Tensor, targets: torch.Tensor, *, entropy: bool, ranks: bool, top: int
) -> dict[str, torch.Tensor]:
    """What is asked of logits `(rows, length, vocab)` and the tokens that follow, `(rows, length)`."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, targets[..., None])
    found = {"logprobs": chosen[..., 0]}
    if entropy:
        found["entropy"] = torch.special.entr(logprobs.exp()).sum(dim=-1)
    if ranks:
        found["ranks"] = (logprobs > chosen).sum(dim=-1) + 1
    if top:
        found["top_logprobs"], found["top_ids"] = logprobs.topk(top, dim=-1)
    return found


class _Reading:
    """One reading of some texts, by the stages of a run up to the one that reads the prompt."""

    def __init__(
        self,
        model: PreTrainedModel,
        inputs: Texts,
        continuation: Texts | None,
        tokenizer: Any,
        chunk_size: int | None,
        kwargs: dict[str, Any],
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise ArgumentError(f"chunk_size={chunk_size} is no number of positions; give 1 or more, or None for all.")
        asked, self.mask = _arguments(model, inputs, continuation, tokenizer, kwargs)
        own = bridge.is_stateful(model) or bridge.makes_own_cache(model)
        whole = own or model.config.is_encoder_decoder  # these can't be read in chunks
        chunked = chunk_size is not None and not whole and self.mask.shape[1] > chunk_size
        if bridge.supports_logits_to_keep(model):
            asked["logits_to_keep"] = 0  # those of all positions
        settings: dict[str, Any] = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "num_return_sequences": 1}
        if chunked:
            settings["prefill_chunk_size"] = chunk_size
        self._outputs: list[tuple[Any, int]] = []
        self._run = Pipeline(prefill=self._read, decode=decode_nothing).start(
            Request(model=model, kwargs={**asked, **settings})
        )

    def _read(
        self, plan: Plan, inputs: ModelInputs, constraints: Constraints
    ) -> Generator[PrefillProgress, Any, DecodingState]:
        state = begin_state(plan, inputs, constraints)
        total, done = inputs.input_ids.shape[1], inputs.reused
        self.ids, self._start = inputs.input_ids, inputs.reused
        self.mask = self.mask & (torch.arange(total, device=self.ids.device) > inputs.reused)
        for outputs, width in read(plan, inputs, state):
            self._outputs.append((outputs, width))
            done += width
            yield PrefillProgress(done, total, inputs.reused)
        return state

    def _chunks(self) -> Iterator[tuple[Any, int, int]]:
        """The outputs of each forward, and the positions that they begin and end at."""
        events = self._run.events()
        start = -1
        try:
            for _ in events:
                start = self._start if start < 0 else start
                outputs, width = self._outputs.pop()
                yield outputs, start, start + width
                start += width
        finally:
            events.close()
            self._run.release()

    def logits(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each chunk the logits that something follows, float32 `(rows, width, vocab)`, and what follows."""
        for outputs, start, stop in self._chunks():
            targets = self.ids[:, start + 1 : stop + 1]
            logits = outputs.logits[:, : targets.shape[1]].float()
            del outputs
            if targets.shape[1]:
                yield logits, targets

    def steps(self) -> Iterator[Step]:
        """A step for each position that something scored follows."""
        count, forward = 0, -1
        for outputs, start, stop in self._chunks():
            forward, live = forward + 1, self.mask.any(dim=0).tolist()
            for position in range(start, min(stop, self.ids.shape[1] - 1)):
                if not live[position + 1]:
                    continue
                at = position - start
                logits = outputs.logits[:, at].to(copy=True, dtype=torch.float32)
                yield Step(
                    index=count,
                    forward=forward,
                    tokens=self.ids[:, position + 1],
                    live=self.mask[:, position + 1],
                    logits=logits,
                    scores=logits,
                    outputs=outputs_of.cut(outputs, at, at + 1, stop - start),
                    positions=range(position, position + 1),
                )
                count += 1

    def scored(self, found: dict[str, torch.Tensor]) -> Scored:
        """The record, from what was measured of every token that was read but the first."""

        def whole(value: torch.Tensor) -> torch.Tensor:
            rows, _, *rest = value.shape
            before = value.new_zeros(rows, self._start + 1, *rest)
            hidden = ~self.mask.view(*self.mask.shape, *[1] * len(rest))
            return torch.cat([before, value], dim=1).masked_fill(hidden, 0)

        return Scored(ids=self.ids, mask=self.mask, **{name: whole(value) for name, value in found.items()})


def _arguments(
    model: PreTrainedModel, inputs: Texts, continuation: Texts | None, tokenizer: Any, kwargs: dict[str, Any]
) -> tuple[dict[str, Any], torch.Tensor]:
    """The keywords of a run that reads the texts, and which of its ids are to be scored."""
    device = model.device
    padding = kwargs.pop("attention_mask", None)
    prompts = joined(inputs, tokenizer, special=True, mask=padding)
    if model.config.is_encoder_decoder:
        if continuation is None:
            raise ArgumentError("An encoder-decoder model scores a continuation; pass what the decoder should say.")
        ends = joined(continuation, tokenizer, special=False)
        _same_rows(prompts, ends)
        ids, mask = padded(prompts, device)
        start = _start(model)
        targets, told = padded([[*start, *row] for row in ends], device)
        decoder = {"decoder_input_ids": targets, "decoder_attention_mask": told}
        return {**kwargs, "input_ids": ids, "attention_mask": mask, **decoder}, _after([1] * len(ends), told)
    ends = [[]] * len(prompts) if continuation is None else joined(continuation, tokenizer, special=False)
    _same_rows(prompts, ends)
    ids, mask = padded([[*a, *b] for a, b in zip(prompts, ends, strict=True)], device)
    given = [1 if continuation is None else max(1, len(row)) for row in prompts]
    return {**kwargs, "input_ids": ids, "attention_mask": mask}, _after(given, mask)


def _same_rows(prompts: Sequence[Any], ends: Sequence[Any]) -> None:
    if len(prompts) != len(ends):
        raise ArgumentError(f"inputs has {len(prompts)} rows, but continuation {len(ends)}; give one for each prompt.")


def _start(model: PreTrainedModel) -> list[int]:
    config = model.generation_config
    start = config.decoder_start_token_id if config.decoder_start_token_id is not None else config.bos_token_id
    if not isinstance(start, int):
        raise ArgumentError("The model's generation_config names no decoder_start_token_id to begin with; set it.")
    return [start]


def _after(given: Sequence[int], mask: torch.Tensor) -> torch.Tensor:
    """Which of the positions that hold tokens come after those that are given: bool, of the shape of `mask`."""
    position = torch.arange(mask.shape[1], device=mask.device)[None]
    return mask.bool() & (position >= torch.tensor(given, device=mask.device)[:, None])
