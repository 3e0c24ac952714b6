"""RAG, token by token: a question is answered from several documents at once.

Each row of text has one row for every document in the encoder and in the cache; their predictions are weighed by how
well each document fits the question, and added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from unspool import cache as caches
from unspool.errors import ArgumentError
from unspool.families.carry import Carry
from unspool.families.encoder_decoder import EncoderDecoder
from unspool.records import Step

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.utils.generic import ModelOutput

__all__ = ["RagStep", "RagToken", "retrieve"]


@dataclass(frozen=True, slots=True)
class RagStep(Step):
    """A step of a RAG model. The logits in its `outputs` are those of each document: `(rows * documents, 1, vocab)`."""

    @property
    def documents(self) -> torch.Tensor:
        """Each document's share in the token that was taken: float32, `(rows, documents)`; sums to 1.

        The posterior over documents: how well each fits the question, times the probability that it gives the token.
        """
        prior = torch.log_softmax(self.outputs.doc_scores, dim=1)
        each = torch.log_softmax(self.outputs.logits[:, -1].float(), dim=-1).view(*prior.shape, -1)
        if self.beams is not None:
            prior, each = prior[self.beams.parents], each[self.beams.parents]
        picked = self.tokens.to(each.device)[:, None, None].expand(-1, prior.shape[1], 1)
        return torch.softmax(prior + each.gather(-1, picked).squeeze(-1), dim=-1)


class RagToken(EncoderDecoder):
    """`RagTokenForGeneration` (Lewis et al., 2020, arXiv:2005.11401)."""

    name: ClassVar[str] = "rag_token"
    step: ClassVar[type[Step]] = RagStep
    refuses: ClassVar[frozenset[str]] = frozenset(
        {"assisted_generation", "contrastive_search", "dola_generation", "group_beam_search", "constrained_beam_search"}
    )
    counts_new_tokens: ClassVar[bool] = False  # its `generate` reads max_length only

    def gather(
        self, model: PreTrainedModel, inputs: torch.Tensor | None, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor | None, dict[str, Any]]:
        """Retrieves the documents, unless they were given."""
        found = retrieve(model, inputs, kwargs)
        return found.pop("context_input_ids"), {**found, "attention_mask": found.pop("context_attention_mask")}

    def encode(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Reads every document, with the question in front."""
        encoder = model.rag.generator.get_encoder()
        mask = kwargs["attention_mask"]
        return {**kwargs, "encoder_outputs": encoder(input_ids=tensor, attention_mask=mask, return_dict=True)}

    def start(
        self, model: PreTrainedModel, tensor: torch.Tensor, name: str, config: GenerationConfig, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The decoder's start id, once for each question."""
        questions = tensor.shape[0] // kwargs["n_docs"]
        start = config.decoder_start_token_id
        return torch.full((questions, 1), start, dtype=torch.long, device=tensor.device), kwargs

    def can_expand_later(self, model: PreTrainedModel, carry: Carry, rows: int) -> bool:
        """No: there is no prompt to read but one id, and the rows of the cache aren't those of the text."""
        return False

    def expand(self, model: PreTrainedModel, carry: Carry, ids: torch.Tensor, count: int) -> torch.Tensor:
        """Repeats the documents of each question together."""
        index = torch.arange(ids.shape[0], device=ids.device).repeat_interleave(count)
        rows = _rows_of_documents(index, carry.kwargs["n_docs"])
        encoded = carry.kwargs["encoder_outputs"]
        carry.kwargs = {
            **carry.kwargs,
            "encoder_outputs": type(encoded)(**{**encoded, "last_hidden_state": encoded.last_hidden_state[rows]}),
            "doc_scores": carry.kwargs["doc_scores"][index],
        }
        if carry.kwargs["attention_mask"] is not None:
            carry.kwargs["attention_mask"] = carry.kwargs["attention_mask"][rows]
        return ids[index]

    def reorder(self, model: PreTrainedModel, carry: Carry, index: torch.Tensor, shared: int) -> None:
        """Moves the documents of each row together."""
        if carry.cache is not None:
            caches.reorder(carry.cache, _rows_of_documents(index, carry.kwargs["n_docs"]), 0, encoder_too=not shared)

    def inputs(self, model: PreTrainedModel, carry: Carry, ids: torch.Tensor, **how: Any) -> dict[str, Any]:
        """The inputs with each document's prediction left by itself."""
        return {**super().inputs(model, carry, ids, **how), "do_marginalize": False}

    def logits(self, model: PreTrainedModel, outputs: ModelOutput) -> torch.Tensor:
        """The log-probabilities of the next token, over all documents."""
        scores = outputs.doc_scores
        marginal: torch.Tensor = model.marginalize(outputs.logits[:, -1:], scores, scores.shape[1])[:, -1]
        return marginal


def retrieve(model: Any, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The documents for each question, as keywords of the model: their ids with the question, mask and scores.

    Args:
        model: A RAG model, with a retriever unless `context_input_ids` are among the keywords.
        inputs: int64 `(questions, length)`.
        kwargs: The keywords of the call.

    Raises:
        ArgumentError: There is neither a retriever nor a document, or their number doesn't fit.
    """
    rest = dict(kwargs)
    given = rest.pop("input_ids", None)
    question = given if inputs is None else inputs
    mask = rest.pop("attention_mask", None)
    count = rest["n_docs"] = rest.get("n_docs") or model.config.n_docs
    if rest.get("context_input_ids") is None:
        if model.retriever is None or question is None:
            raise ArgumentError(
                "No context_input_ids were given, and there is nothing to retrieve them with; give them with "
                "context_attention_mask and doc_scores, or give input_ids to a model that has a retriever."
            )
        rest |= _search(model, question, mask, count)
    elif rest.get("doc_scores") is None:
        raise ArgumentError("context_input_ids were given without doc_scores; give one score for each document.")
    if rest["context_input_ids"].shape[0] % count:
        raise ArgumentError(
            f"context_input_ids has {rest['context_input_ids'].shape[0]} rows; n_docs={count} wants a multiple."
        )
    return {"context_attention_mask": None, **rest}


def _search(model: Any, question: torch.Tensor, mask: torch.Tensor | None, count: int) -> dict[str, torch.Tensor]:
    encoded = model.question_encoder(question, attention_mask=mask)[0]
    prefix = getattr(model.generator.config, "prefix", None)
    plain = encoded.detach().to(device="cpu", dtype=torch.float32).numpy()
    found = model.retriever(question, plain, prefix=prefix, n_docs=count, return_tensors="pt")
    embedded = found["retrieved_doc_embeds"].to(encoded)
    return {
        "context_input_ids": found["context_input_ids"].to(question),
        "context_attention_mask": found["context_attention_mask"].to(question),
        "doc_scores": torch.bmm(encoded.unsqueeze(1), embedded.transpose(1, 2)).squeeze(1),
    }


def _rows_of_documents(index: torch.Tensor, count: int) -> torch.Tensor:
    """The rows of the documents of some rows of text."""
    return (index[:, None] * count + torch.arange(count, device=index.device)).flatten()
