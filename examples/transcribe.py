"""Writes down speech with its times, each segment as soon as it is certain: python examples/transcribe.py talk.wav."""

import sys

import numpy
import soundfile
from transformers import AutoProcessor, WhisperForConditionalGeneration

from unspool import generate_stream
from unspool.events import Segment

NAME = "openai/whisper-tiny"
processor = AutoProcessor.from_pretrained(NAME)
model = WhisperForConditionalGeneration.from_pretrained(NAME)

noise = numpy.random.default_rng(0).normal(0, 0.1, 45 * 16000).astype("float32")
sound, rate = soundfile.read(sys.argv[1], dtype="float32") if len(sys.argv) > 1 else (noise, 16000)
inputs = processor(
    sound, sampling_rate=rate, truncation=False, padding="longest", return_attention_mask=True, return_tensors="pt"
)
stream = generate_stream(
    model,
    **inputs,
    return_timestamps=True,
    temperature=(0.0, 0.4, 0.8),  # tried one after the other where what is heard makes no sense
    compression_ratio_threshold=1.35,
    logprob_threshold=-1.0,
)
for event in stream.events():
    if isinstance(event, Segment):
        text = processor.decode(event.ids, skip_special_tokens=True)
        print(f"{event.start:7.2f} to {event.end:7.2f} s: {text}", flush=True)
