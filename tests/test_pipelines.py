"""Text out of transformers' pipelines while it is made: what they return at the end, and they are left as found."""

from __future__ import annotations

import copy

import anyio
import numpy as np
import pytest
import torch
import transformers
from transformers import pipeline

from tiny import tiny_model, tiny_tokenizer
from unspool import FinishReason, stream_pipeline
from unspool.errors import ArgumentError, StreamError, UnsupportedError
from unspool.pipelines import astream_pipeline
from unspool.sinks import TextSink

GREEDY = {"max_new_tokens": 6, "do_sample": False}
TEMPLATE = "{% for message in messages %}{{ message['content'] }} w9 {% endfor %}"
TEXTS = ["w5 w6", "w7 w8 w9", "w10"]


def writer(name="llama"):
    tokenizer = copy.copy(tiny_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return pipeline("text-generation", tiny_model(name), tokenizer=tokenizer)


def whole(pipe, inputs, **kwargs):
    """What the pipeline itself returns, as a flat list of texts; without the space that older ones leave before it."""
    made = pipe(inputs, return_full_text=False, **kwargs)
    return [
        record["generated_text"].lstrip() for part in made for record in (part if isinstance(part, list) else [part])
    ]


def texts(chunks):
    rows: dict[int, str] = {}
    for chunk in chunks:
        rows[chunk.row] = rows.get(chunk.row, "") + chunk.text
    return [rows[row] for row in sorted(rows)]


INPUTS = {
    "a text": "w5 w6",
    "texts": TEXTS,
    "a chat": [{"role": "user", "content": "w5 w6"}],
    "chats": [[{"role": "user", "content": text}] for text in TEXTS],
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_chunks_joined_are_what_the_pipeline_returns(inputs):
    pipe = writer()
    assert texts(stream_pipeline(pipe, inputs, **GREEDY)) == whole(pipe, inputs, **GREEDY)


@pytest.mark.parametrize("size", [2, 3])
def test_batches_are_run_as_the_pipeline_runs_them(size):
    pipe = writer()
    chunks = list(stream_pipeline(pipe, TEXTS, batch_size=size, **GREEDY))
    assert texts(chunks) == whole(pipe, TEXTS, batch_size=size, **GREEDY)
    assert {(chunk.row, chunk.prompt) for chunk in chunks} == {(0, 0), (1, 1), (2, 2)}


def test_samples_of_each_input_are_rows():
    pipe, settings = writer(), {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 2}
    torch.manual_seed(3)
    expected = whole(pipe, TEXTS[0], **settings)
    torch.manual_seed(3)
    chunks = list(stream_pipeline(pipe, TEXTS, **settings))
    assert texts(chunks)[:2] == expected  # for the next input of a list, transformers draws a number more
    assert {(c.row, c.prompt, c.sample) for c in chunks} == {(r, r // 2, r % 2) for r in range(6)}


def test_inputs_of_a_generator_are_taken_one_by_one():
    taken = []

    def inputs():
        for text in TEXTS:
            taken.append(text)
            yield text

    stream = stream_pipeline(writer(), inputs(), **GREEDY)
    assert taken == []
    next(stream)
    assert len(taken) == 1
    list(stream)
    assert taken == TEXTS


def test_settings_made_with_the_pipeline_hold():
    pipe = pipeline("text-generation", tiny_model(), tokenizer=tiny_tokenizer(), max_new_tokens=3, do_sample=False)
    assert texts(stream_pipeline(pipe, "w5 w6")) == whole(pipe, "w5 w6")


def test_an_assistant_made_with_the_pipeline_drafts():
    model = tiny_model()
    pipe = pipeline("text-generation", model, tokenizer=tiny_tokenizer(), assistant_model=tiny_model(seed=1))
    stream = stream_pipeline(pipe, "w5 w6", **GREEDY)
    assert texts(stream) == whole(pipe, "w5 w6", **GREEDY)
    assert stream._stream.result.drafted > 0


def test_it_comes_piece_by_piece_and_can_be_left():
    model, forwards = tiny_model(), []
    pipe = pipeline("text-generation", model, tokenizer=tiny_tokenizer())
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    stream = stream_pipeline(pipe, TEXTS, max_new_tokens=50, do_sample=False)
    next(stream)
    stream.close()
    assert len(forwards) == 1
    assert list(stream) == []
    handle.remove()


def test_the_pipeline_is_left_as_it_was():
    pipe = writer()
    before = {name: copy.copy(value) for name, value in vars(pipe).items()}
    list(stream_pipeline(pipe, TEXTS, **GREEDY))
    assert vars(pipe).keys() == before.keys()
    for name, value in vars(pipe).items():
        assert value is getattr(pipe, name)
        if isinstance(value, (dict, int, str, type(None))):
            assert value == before[name], name


def test_a_pipeline_prints_to_the_screen_in_one_line(capsys):
    pipe = writer()
    result = stream_pipeline(pipe, "w5 w6", **GREEDY).to(TextSink())
    assert capsys.readouterr().out == whole(pipe, "w5 w6", **GREEDY)[0] + "\n"
    assert result.finishes[0].reason is FinishReason.MAX_LENGTH


def test_sinks_take_one_stream():
    with pytest.raises(StreamError, match="batch_size"):
        stream_pipeline(writer(), TEXTS, **GREEDY).to(TextSink())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_for_gives_the_same(backend):
    pipe = writer()

    async def read():
        return [chunk async for chunk in astream_pipeline(pipe, TEXTS, **GREEDY)]

    assert anyio.run(read, backend=backend) == list(stream_pipeline(pipe, TEXTS, **GREEDY))


def listener():
    torch.manual_seed(0)
    config = transformers.MoonshineConfig(
        vocab_size=160,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    ears = transformers.Wav2Vec2FeatureExtractor(sampling_rate=16000, return_attention_mask=True)
    return pipeline("automatic-speech-recognition", model, tokenizer=tiny_tokenizer(), feature_extractor=ears)


SOUND = np.sin(np.arange(8000) / 20).astype(np.float32)


@pytest.mark.parametrize("inputs", [SOUND, [SOUND, SOUND[:4000]]], ids=["one", "two"])
def test_speech_is_written_down_as_the_pipeline_does(inputs):
    pipe = listener()
    made = pipe(inputs, generate_kwargs=GREEDY)
    expected = [one["text"] for one in (made if isinstance(made, list) else [made])]
    chunks = list(stream_pipeline(pipe, inputs, generate_kwargs=GREEDY))
    assert texts(chunks) == expected
    assert len(chunks) > len(expected)


def seer():
    torch.manual_seed(0)
    vision = dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = dict(
        vocab_size=160,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=2,
        pad_token_id=0,
    )
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision),
        text_config=transformers.LlamaConfig(**text),
        image_token_index=159,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    model.resize_token_embeddings(image_token + 1)
    model.config.image_token_id = image_token
    eyes = transformers.CLIPImageProcessor(size={"height": 16, "width": 16}, do_center_crop=False)
    processor = transformers.LlavaProcessor(
        eyes, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    return pipeline("image-text-to-text", model, processor=processor)


def test_images_with_text_are_answered_as_the_pipeline_does():
    image = pytest.importorskip("PIL.Image").new("RGB", (16, 16), "red")
    pipe = seer()
    one = {"images": image, "text": "<image> w5"}
    made = pipe(text="<image> w5", images=image, return_full_text=False, **GREEDY)
    expected = made[0]["generated_text"].lstrip()  # with the space between prompt and answer
    assert texts(stream_pipeline(pipe, one, **GREEDY)) == [expected]
    assert texts(stream_pipeline(pipe, [one, one], **GREEDY)) == [expected] * 2
    with pytest.raises(ArgumentError, match="list of dicts"):
        stream_pipeline(pipe, text=["<image> w5"] * 2, images=[image] * 2, **GREEDY)


def test_sound_in_overlapping_pieces_is_refused():
    with pytest.raises(UnsupportedError, match="chunk_length_s"):
        stream_pipeline(listener(), SOUND, chunk_length_s=1)


def test_a_pipeline_that_writes_no_text_is_refused():
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    model = transformers.BertForSequenceClassification(config)
    pipe = pipeline("text-classification", model, tokenizer=tiny_tokenizer())
    with pytest.raises(UnsupportedError, match="doesn't write text"):
        list(stream_pipeline(pipe, "w5"))
