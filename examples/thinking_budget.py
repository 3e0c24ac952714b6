"""A thinking block that may only be so long: when the budget is spent, it is closed, and the answer follows."""

from unspool import generate_stream
from unspool.cli import load_model

BUDGET = 12  # tokens

model, tokenizer = load_model()
chat = [{"role": "user", "content": "Which is larger, 9.9 or 9.11?"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)

stream = generate_stream(model, **inputs, max_new_tokens=40, do_sample=False, tokenizer=tokenizer)
stream.force("<think>\n")
thinking, said = True, ""
for step in stream:
    said += tokenizer.decode(step.tokens)
    if thinking and ("</think>" in said or step.index == BUDGET):
        thinking = False
        if "</think>" not in said:
            stream.force("\n</think>\n\n")
print(said)
