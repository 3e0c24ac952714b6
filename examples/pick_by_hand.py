"""Chooses each token by hand: the likeliest are shown, a number picks one, an empty line takes the first."""

import torch

from unspool import generate_stream
from unspool.cli import load_model

model, tokenizer = load_model()
inputs = tokenizer("Once upon a time", return_tensors="pt")

stream = generate_stream(model, **inputs, max_new_tokens=8, do_sample=False)
text = "Once upon a time"
for step in stream:
    chances, tokens = torch.softmax(step.scores[0], -1).topk(5)
    for number, (chance, token) in enumerate(zip(chances.tolist(), tokens.tolist(), strict=True), 1):
        print(f"  {number}  {chance:4.0%}  {tokenizer.decode([token])!r}")
    try:
        picked = input(f"{text!r} > ").strip()
    except EOFError:  # nobody there
        break
    if picked.isdigit() and 1 <= int(picked) <= 5:
        step = stream.replace(tokens[int(picked) - 1 : int(picked)])
    text += tokenizer.decode(step.tokens)
print(text)
