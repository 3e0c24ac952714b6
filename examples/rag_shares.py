"""Answers a question from documents, and shows which of them each word comes from."""

from transformers import AutoTokenizer, RagRetriever, RagTokenForGeneration

from unspool import generate_stream

NAME = "facebook/rag-token-nq"
retriever = RagRetriever.from_pretrained(NAME, index_name="exact", use_dummy_dataset=True)
model = RagTokenForGeneration.from_pretrained(NAME, retriever=retriever).eval()
tokenizer = AutoTokenizer.from_pretrained(NAME)

inputs = tokenizer("who holds the record in 100m freestyle", return_tensors="pt")
for step in generate_stream(model, inputs["input_ids"], max_length=16):
    bars = "  ".join(f"{share:4.0%} {'█' * round(10 * share):10}" for share in step.documents[0].tolist())
    print(f"{tokenizer.decode(step.tokens):16} {bars}", flush=True)
