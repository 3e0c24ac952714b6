"""Patches an activation from step 5 on: a layer's output is pushed away from what it was for another prompt."""

from unspool import generate_stream
from unspool.cli import load_model

model, tokenizer = load_model()
middle = model.config.num_hidden_layers // 2
other = tokenizer("It is terrible, awful and bad.", return_tensors="pt")
inputs = tokenizer("I think that this film is", return_tensors="pt")

# What the layer gives for the other prompt.
direction = []
reading = generate_stream(model, **other, max_new_tokens=1)
reading.intervene(middle, lambda hidden, step: direction.append(hidden[:, -1:].clone()))
next(reading)


def push(hidden, step):
    """Away from the other prompt, as far as the activation is long."""
    away = direction[0] / direction[0].norm()
    return hidden - 0.6 * hidden.norm(dim=-1, keepdim=True) * away


for name, patched in (("as it is", False), ("patched from step 5 on", True)):
    stream = generate_stream(model, **inputs, max_new_tokens=20, do_sample=False)
    if patched:
        stream.intervene(middle, push, from_step=5)
    print(f"{name}: {tokenizer.decode([int(step.tokens) for step in stream])!r}")
