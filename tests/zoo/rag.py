"""Tiny models that answer from documents, and a retriever that holds its table in memory."""

import functools

import numpy as np
import torch
from transformers import BartConfig, DPRConfig, RagConfig, RagRetriever, RagSequenceForGeneration, RagTokenForGeneration

from tiny import BOS, EOS, PAD, START, VOCAB

DOCUMENTS = 3


class Retriever(RagRetriever):
    """Finds the documents nearest to a question in a table held in memory."""

    def __init__(self, size):
        draw = np.random.default_rng(0)
        self.table = draw.normal(size=(8, size)).astype("float32")
        self.texts = torch.randint(10, VOCAB, (8, 6), generator=torch.Generator().manual_seed(1))

    def __call__(self, question, encoded, prefix=None, n_docs=DOCUMENTS, return_tensors=None):
        best = torch.from_numpy((encoded @ self.table.T).argsort(-1)[:, ::-1][:, :n_docs].copy())
        ids = torch.cat([self.texts[best].flatten(0, 1), question.repeat_interleave(n_docs, 0)], -1)
        return {
            "context_input_ids": ids,
            "context_attention_mask": torch.ones_like(ids),
            "retrieved_doc_embeds": torch.from_numpy(self.table)[best],
            "doc_ids": best,
        }


def config():
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    bart = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    bart |= dict(encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, vocab_size=VOCAB, init_std=0.3)
    ids = dict(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=START)
    return RagConfig(
        question_encoder=DPRConfig(vocab_size=VOCAB, **size).to_dict(),
        generator=BartConfig(**bart, **ids, forced_eos_token_id=None).to_dict(),
        n_docs=DOCUMENTS,
        retrieval_vector_size=32,
        **ids,
    )


def build(kind):
    torch.manual_seed(0)
    model = kind(config(), retriever=Retriever(32)).eval()
    for name, weight in model.named_parameters():
        if "generator" in name and weight.ndim > 1:
            weight.data.normal_(0, 0.3)
    return model


def questions():
    return torch.randint(10, VOCAB, (2, 5), generator=torch.Generator().manual_seed(2))


@functools.cache
def rag_token():
    return build(RagTokenForGeneration), {"input_ids": questions()}


@functools.cache
def rag_sequence():
    return build(RagSequenceForGeneration), {"input_ids": questions()}
