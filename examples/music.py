"""Makes music that can be listened to while it is being made: python examples/music.py "slow jazz" music.wav."""

import sys

from transformers import AutoProcessor, MusicgenForConditionalGeneration

from unspool import generate_stream
from unspool.sinks import AudioSink

NAME = "facebook/musicgen-small"
words = sys.argv[1] if len(sys.argv) > 1 else "a calm piano, with rain"
file = sys.argv[2] if len(sys.argv) > 2 else "music.wav"
processor = AutoProcessor.from_pretrained(NAME)
model = MusicgenForConditionalGeneration.from_pretrained(NAME)

sink = AudioSink(file, model, chunk=0.5)
stream = generate_stream(
    model, **processor(text=[words], return_tensors="pt"), do_sample=True, guidance_scale=3.0, max_new_tokens=256
)
written = 0.0
for step in stream.through(sink):
    if sink.seconds > written:
        written = sink.seconds
        print(f"{written:.1f} s after {step.index + 1} steps", flush=True)
print(f"{sink.seconds:.1f} s in {file}")
