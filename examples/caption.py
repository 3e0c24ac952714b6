"""Describes an image, word by word: python examples/caption.py photo.jpg."""

import sys

from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from unspool import generate_stream

NAME = "HuggingFaceTB/SmolVLM-256M-Instruct"
processor = AutoProcessor.from_pretrained(NAME)
model = AutoModelForImageTextToText.from_pretrained(NAME)

image = Image.open(sys.argv[1]) if len(sys.argv) > 1 else Image.radial_gradient("L").convert("RGB")
question = [{"type": "image", "image": image}, {"type": "text", "text": "What is in this image?"}]
inputs = processor.apply_chat_template(
    [{"role": "user", "content": question}],
    add_generation_prompt=True,
    tokenize=True,
    return_dict=True,
    return_tensors="pt",
)
for chunk in generate_stream(model, **inputs, max_new_tokens=60, do_sample=False).text(processor):
    print(chunk.text, end="", flush=True)
print()
