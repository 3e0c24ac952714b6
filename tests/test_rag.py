"""RAG: documents are read beside each other, and every step shows what each of them had in it."""

import pytest
import torch
from transformers import RagSequenceForGeneration, RagTokenForGeneration

from unspool import generate, generate_stream
from unspool.errors import ArgumentError
from zoo.rag import DOCUMENTS, build, questions


@pytest.fixture(scope="module")
def model():
    return build(RagTokenForGeneration)


@pytest.fixture
def question():
    return questions()


METHODS = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "without a cache": {"use_cache": False},
}


@pytest.mark.parametrize("how", METHODS.values(), ids=METHODS)
def test_answers_are_those_of_its_own_generate(model, question, how):
    torch.manual_seed(3)
    theirs = model.generate(question, max_length=12, **how)
    torch.manual_seed(3)
    assert torch.equal(generate(model, question, max_length=12, **how), theirs)


def test_documents_can_be_given_instead_of_a_question(model, question):
    found = model.retriever(question, model.question_encoder(question)[0].detach().numpy())
    scores = torch.rand(2, DOCUMENTS, generator=torch.Generator().manual_seed(4))
    given = {name: found[name] for name in ("context_input_ids", "context_attention_mask")}
    theirs = model.generate(**given, doc_scores=scores, max_length=12)
    assert torch.equal(generate(model, **given, doc_scores=scores, max_length=12), theirs)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_shares_of_documents_add_up_and_explain_the_probability_of_the_token(model, question, how):
    for step in generate_stream(model, question, max_length=8, **how):
        assert step.documents.shape == (step.rows, DOCUMENTS)
        assert torch.allclose(step.documents.sum(-1), torch.ones(step.rows))
        prior = step.outputs.doc_scores.softmax(-1)
        each = step.outputs.logits[:, -1].softmax(-1).unflatten(0, prior.shape)
        joint = prior[..., None] * each
        joint = joint if step.beams is None else joint[step.beams.parents]
        taken = joint.gather(-1, step.tokens[:, None, None].expand(-1, DOCUMENTS, 1))[..., 0]
        assert torch.allclose(step.documents, taken / taken.sum(-1, keepdim=True), atol=1e-5)


def test_samples_of_a_question_are_drawn_from_the_same_documents(model, question):
    out = generate(model, question, max_length=8, do_sample=True, num_return_sequences=3, seed=0)
    assert out.shape[0] == 6  # transformers' own generate returns one a question


def test_the_length_is_counted_as_its_own_generate_counts_it(model, question):
    theirs = model.generate(question, max_new_tokens=4)
    assert torch.equal(generate(model, question, max_new_tokens=4), theirs)
    assert theirs.shape[1] > 5  # which is not by max_new_tokens


def test_other_methods_are_refused_at_the_call(model, question):
    with pytest.raises(ArgumentError, match="doesn't go with assisted_generation"):
        generate_stream(model, question[:1], prompt_lookup_num_tokens=2)


def test_documents_without_scores_are_refused(model, question):
    with pytest.raises(ArgumentError, match="doc_scores"):
        generate(model, context_input_ids=question.repeat(3, 1), max_length=8)


@pytest.mark.parametrize("how", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_a_sequence_model_streams_the_candidates_of_each_question_and_returns_the_best(question, how):
    model = build(RagSequenceForGeneration)
    how = {"num_beams": 1, "num_return_sequences": 1, **how}
    theirs = model.generate(question, max_length=9, **how)
    stream = generate_stream(model, question, max_length=9, **how)
    rows = {step.rows for step in stream}
    assert rows == {DOCUMENTS * how["num_beams"]}
    assert torch.equal(stream.result.sequences, theirs)
