"""The records that stages hand to each other, and the events that a stream yields.

All are frozen: a record is a fact about a run, and whoever holds one may keep it. Tensors in them stay
on the model's device, and nothing here reads one back unless the reader asks.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from unspool.events import Change, Draft, Frames, Pause, Phase, Retract, Segment

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers.utils.generic import ModelOutput

__all__ = [
    "Beams",
    "Event",
    "Finish",
    "FinishReason",
    "Opening",
    "PrefillProgress",
    "Prefilled",
    "Result",
    "Step",
    "TextChunk",
]


class FinishReason(enum.StrEnum):
    """Why a row ended."""

    EOS = "eos"
    STOP_STRING = "stop_string"
    MAX_LENGTH = "max_length"
    MAX_TIME = "max_time"
    CRITERION = "criterion"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a row ended.

    Attributes:
        reason: The kind of ending.
        detail: The token id for `EOS`, the string for `STOP_STRING`, the limit for `MAX_LENGTH` (tokens, prompt
            included) and `MAX_TIME` (seconds), the criterion for `CRITERION`, the exception for `ERROR`.
    """

    reason: FinishReason
    detail: Any = None


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt has been read.

    Attributes:
        done: Prompt positions in the cache so far, reused ones included.
        total: Prompt positions in all.
        reused: Prompt positions that a cache given by the caller already held.
    """

    done: int
    total: int
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that has been read, all but its last token.

    Attributes:
        cache: The cache. Give it to `generate_stream` with the whole prompt, or a longer one that begins with it.
        length: Positions in the cache.
    """

    cache: Any
    length: int


@dataclass(frozen=True, slots=True)
class Beams:
    """The beams of one step, and the hypotheses that have finished.

    A row is a running beam; row `r` belongs to prompt `r // beams`. The step's `logits`, `scores` and `outputs`
    are in the order of the beams before this step, and `parents` maps the beams after it to them.

    Attributes:
        parents: int64, `(rows,)`: the row that each beam continues.
        tokens: int64, `(rows,)`: the token it adds.
        scores: float32, `(rows,)`: its cumulative log-probability.
        ids: int64, `(prompts, beams, length)`: its ids so far, prompt included.
        finished_ids: int64, `(prompts, beams, length)`: the hypotheses kept, best first, filled up at the right.
        finished_scores: float32, `(prompts, beams)`: their scores after the length penalty.
        finished_lengths: int64, `(prompts, beams)`: how long each is; 0 where there is none yet.
        settled: bool, `(prompts,)`: the prompts whose running beams can't change what is returned any more.
        returned: For each prompt the number of sequences that will be returned.
        idle: bool, `(rows,)`: the rows whose part of the search is over while others of their prompt go on; what
            they hold means nothing. None where all beams of a prompt search together.
    """

    parents: torch.Tensor
    tokens: torch.Tensor
    scores: torch.Tensor
    ids: torch.Tensor
    finished_ids: torch.Tensor
    finished_scores: torch.Tensor
    finished_lengths: torch.Tensor
    settled: torch.Tensor
    returned: int
    idle: torch.Tensor | None = None

    @property
    def agreed(self) -> tuple[tuple[int, ...], ...]:
        """For each prompt, the ids on which all sequences that may still be returned agree, prompt included.

        Only ever grows, and is a prefix of every sequence that will be returned for the prompt. Computed when read.
        """
        return tuple(_common(rows) for rows in self.candidates())

    def candidates(self) -> list[list[list[int]]]:
        """For each prompt, the ids of all sequences that may still be returned, or become such."""
        lengths, settled = self.finished_lengths.tolist(), self.settled.tolist()
        idle = self.idle_rows().view(self.ids.shape[:2]).tolist()
        found = []
        for prompt, (beams, kept) in enumerate(zip(self.ids.tolist(), self.finished_ids.tolist(), strict=True)):
            running = [ids for ids, over in zip(beams, idle[prompt], strict=True) if not over or settled[prompt]]
            done = [ids[:length] for ids, length in zip(kept, lengths[prompt], strict=True) if length]
            if settled[prompt] and done:
                found.append(done if not all(settled) and self._ties(prompt) else done[: self.returned])
            else:
                found.append(running + done)
        return found

    def _ties(self, prompt: int) -> bool:
        """Whether the last hypothesis to be returned is as good as the next, and may yet change places with it."""
        scores = self.finished_scores[prompt]
        return self.returned < len(scores) and bool(scores[self.returned - 1] == scores[self.returned])

    def idle_rows(self) -> torch.Tensor:
        """The rows that search no more: bool, `(rows,)`."""
        over = self.settled.repeat_interleave(self.ids.shape[1])
        return over if self.idle is None else over | self.idle


@dataclass(frozen=True, slots=True)
class Step:
    """One new token position in every live row; the same record for every decoding method.

    A row is one sequence being generated: row `r` continues prompt `r // rows_per_prompt`, as its sample
    number `r % rows_per_prompt`.

    Attributes:
        index: Position among the new tokens, from 0.
        forward: The number of the forward that produced it, from 0.
        tokens: int64, `(rows,)`; `(rows, codebooks)` for models that make whole frames at once. A row that ended
            earlier holds the pad id (or, where no end-of-sequence id is set, whatever the model went on to say, as in
            transformers).
        live: bool, `(rows,)`: which rows took a token at this step.
        ended: The rows that end here, and how.
        logits: float32, `(rows, vocab)`, as the model gave them.
        scores: float32, `(rows, vocab)`, after the logits processors; the distribution the token was taken from.
        outputs: The model's own output object for this position, with every field it returned except the cache.
            Its hidden states and attentions cover the positions in `positions`.
        positions: The token positions, prompt included, that the tensors in `outputs` cover.
        rows_per_prompt: Sequences generated for each prompt.
        drafted: Whether the token was proposed by a draft and accepted.
        more: How many further steps the same forward has settled already.
        beams: The beams, for the methods that search with them. `tokens` are then those of the beams after the step.
        forced: bool, `(rows,)`: the rows whose token was given by `Stream.force`; None if there are none.
    """

    index: int
    forward: int
    tokens: torch.Tensor
    live: torch.Tensor
    logits: torch.Tensor
    scores: torch.Tensor
    outputs: ModelOutput
    positions: range
    ended: Mapping[int, Finish] = field(default_factory=dict)
    rows_per_prompt: int = 1
    drafted: bool = False
    more: int = 0
    beams: Beams | None = None
    forced: torch.Tensor | None = None

    @property
    def logprobs(self) -> torch.Tensor:
        """Log-probabilities of the chosen tokens under `scores`: float32, `(rows,)`. Computed when read."""
        picked = self.tokens.to(self.scores.device).unsqueeze(-1)
        scores = self.scores if self.beams is None else self.scores.index_select(0, self.beams.parents)
        return torch.log_softmax(scores, dim=-1).gather(-1, picked).squeeze(-1)

    @property
    def rows(self) -> int:
        """How many sequences are being generated."""
        return self.tokens.shape[0]


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of one row's text, with exactly the tokens it was made from.

    Attributes:
        row: The row it belongs to.
        prompt: The index of the row's prompt in the batch.
        sample: The index of the row among those of its prompt.
        text: The new text. May be empty on a row's last chunk.
        ids: The ids of the tokens whose text this is (skipped special tokens ride along).
        logprobs: Their log-probabilities, one for each id.
        finish: How the row ended, on its last chunk; None before.
        back: How many characters of the row's text so far are void, and to be taken off its end before `text` is added:
            the stream was rewound. 0 for all others.
    """

    row: int
    prompt: int
    sample: int
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish | None = None
    back: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """What a sink is told before the first event.

    Attributes:
        prompt_ids: int64, `(rows, length)`: what each row starts from, expanded to one row per sample. For
            encoder-decoder models these are the decoder's first ids.
        rows_per_prompt: Sequences generated for each prompt.
        config: The generation config of the run, with every default filled in.
        tokenizer: The tokenizer given to the call, if any.
        encoder_outputs: What the encoder gave, one row per prompt, for encoder-decoder models.
        is_encoder_decoder: Whether the model has an encoder.
        method: The name of the decoding method.
        earlier: For a stream that was forked: for each row the ids that it took before, or None if it had ended; else
            None.
        revises: Whether steps may become void of themselves: the model may hear a part of its sound anew.
        silent: The ids that have no text, whatever the tokenizer says: time marks, blanks.
        began: When the run began, in seconds of `time.perf_counter()`: before the encoder ran or a prompt was read.
    """

    prompt_ids: torch.Tensor
    rows_per_prompt: int
    config: GenerationConfig
    tokenizer: Any = None
    encoder_outputs: ModelOutput | None = None
    is_encoder_decoder: bool = False
    method: str = ""
    began: float = 0.0
    earlier: tuple[tuple[int, ...] | None, ...] | None = None
    revises: bool = False
    silent: range | tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """How many sequences will be generated."""
        return self.prompt_ids.shape[0]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to, whether it went to its end or was left early.

    Attributes:
        sequences: int64, `(rows, length)`, prompt included, as `generate()` returns them.
        prompt_length: How many of those positions were given.
        finishes: For each row how it ended.
        steps: Steps made.
        forwards: Forwards of the model, prefill included.
        cache: The cache, if the run returns one (`return_dict_in_generate=True`, or a cache given by the caller).
        output: What the model's own `generate` made of it, for models that have a loop of their own; else None.
        sequences_scores: float32, `(rows,)`: the beam scores of the sequences, after the length penalty.
        beam_indices: int32, `(rows, steps)`: the beam that each new token of a sequence was chosen on; -1 past its end.
        drafted: Tokens that drafts proposed.
        accepted: Those of them that were taken.
    """

    sequences: torch.Tensor
    prompt_length: int
    finishes: tuple[Finish, ...]
    steps: int
    forwards: int
    cache: Any = None
    output: Any = None
    sequences_scores: torch.Tensor | None = None
    beam_indices: torch.Tensor | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        """Tokens that drafts proposed in vain."""
        return self.drafted - self.accepted

    @property
    def tokens(self) -> torch.Tensor:
        """The new tokens only: int64, `(rows, steps)`."""
        return self.sequences[:, self.prompt_length :]

    @property
    def complete(self) -> bool:
        """Whether every row came to an end of its own."""
        early = {FinishReason.STOPPED, FinishReason.INTERRUPTED, FinishReason.ERROR}
        return not any(finish.reason in early for finish in self.finishes)


def _common(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The longest common prefix."""
    low, high = min(map(tuple, rows)), max(map(tuple, rows))
    at = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return tuple(low[:at])


Event = PrefillProgress | Step | Phase | Segment | Draft | Frames | Retract | Change | Pause
