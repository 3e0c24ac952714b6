"""Text as it becomes certain, with the probability of each piece, and the reason for the end."""

import math

from unspool import generate_stream
from unspool.cli import load_model

model, tokenizer = load_model()
chat = [{"role": "user", "content": "Name three rivers."}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)

with generate_stream(model, **inputs, tokenizer=tokenizer, max_new_tokens=40) as stream:
    for chunk in stream.text():
        if chunk.text:
            print(f"{math.exp(sum(chunk.logprobs)):4.0%}  {chunk.text!r}")

finish = stream.result.finishes[0]
print(f"{stream.result.steps} tokens; ended by {finish.reason} ({finish.detail})")
