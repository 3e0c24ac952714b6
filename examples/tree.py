"""The tree of what the model might say next, three ways at each of three places."""

from rich import print

from unspool import explore, generate_stream
from unspool.cli import load_model

model, tokenizer = load_model()
inputs = tokenizer("My favourite animal is the", return_tensors="pt")

stream = generate_stream(model, **inputs, max_new_tokens=8, do_sample=False)
tree = explore(stream, width=3, depth=3, tokenizer=tokenizer)
print(tree)
ids, chance = tree.paths()[0]
print(f"likeliest: {tokenizer.decode(ids)!r}, {chance:.1%}")
