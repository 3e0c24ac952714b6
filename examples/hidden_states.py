"""From which layer on does the model know what it is about to say?

Every step brings the model's own output object. Here each layer's hidden state is read as if it were the last, and
compared with the token that was chosen.
"""

import torch

from unspool import generate_stream
from unspool.cli import load_model

model, tokenizer = load_model()  # SmolLM2; or load_model("a hub id, a folder or a .gguf file")
inputs = tokenizer("The capital of France is Paris. The capital of Italy is", return_tensors="pt")

for step in generate_stream(model, **inputs, max_new_tokens=9, output_hidden_states=True):
    layers = torch.stack([states[0, -1] for states in step.outputs.hidden_states[:-1]])
    agrees = model.lm_head(model.model.norm(layers)).argmax(-1) == step.tokens
    undecided = len(layers) - int(agrees.flip(0).cumprod(0).sum())
    print(f"{tokenizer.decode(step.tokens)!r:>14}  {'·' * undecided}{'█' * (len(layers) - undecided)}")
