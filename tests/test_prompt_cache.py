"""Prompts are read once: what streams begin with is held, found by its ids, and never changes what they say."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tiny import tiny_model
from unspool import PromptCache, generate
from unspool.errors import ArgumentError, CacheError, UnsupportedError

KINDS = ["llama", "gpt2", "mistral", "gemma3_text", "mamba", "recurrent_gemma", "rwkv"]
kinds = pytest.mark.parametrize("name", KINDS)


def ids(*tokens):
    return torch.tensor([tokens])


def widths(model):
    """How many positions each forward covers."""
    seen = []
    hook = lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1])  # noqa: E731
    model.register_forward_pre_hook(hook, with_kwargs=True)
    return seen


@kinds
def test_the_turns_of_a_conversation_say_what_they_say_without_it(name):
    model = tiny_model(name)
    cache, prompt = PromptCache(model), ids(5, 6, 7, 8, 9, 10, 11, 12)
    for turn in range(4):
        expected = generate(model, prompt, max_new_tokens=5)
        stream = cache.stream(prompt, max_new_tokens=5)
        assert len(list(stream)) == expected.shape[1] - prompt.shape[1]
        assert torch.equal(stream.result.sequences, expected)
        prompt = torch.cat([expected, ids(20 + turn, 30, 31)], dim=1)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba"])
def test_each_turn_forwards_its_new_tokens_only(name):
    model = tiny_model(name)
    cache, prompt = PromptCache(model), ids(5, 6, 7, 8, 9, 10, 11, 12)
    list(stream := cache.stream(prompt, max_new_tokens=5))
    longer = torch.cat([stream.result.sequences, ids(20, 21, 22)], dim=1)
    read = widths(model)
    list(cache.stream(longer, max_new_tokens=2))
    assert sum(read) == 3 + 1 + 1  # what was asked, the answer's last token that nobody had read, one more step
    model._forward_pre_hooks.clear()


@settings(deadline=None, max_examples=25)
@given(
    prompts=st.lists(st.lists(st.integers(5, 8), min_size=2, max_size=12), min_size=1, max_size=8),
    name=st.sampled_from(["llama", "mistral", "mamba"]),
    room=st.sampled_from([None, 10, 30]),
)
def test_whatever_was_read_before_a_prompt_is_answered_as_if_it_were_the_first(prompts, name, room):
    model = tiny_model(name)
    cache = PromptCache(model, max_tokens=room)
    for tokens in prompts:
        stream = cache.stream(ids(*tokens), max_new_tokens=3)
        list(stream)
        assert torch.equal(stream.result.sequences, generate(model, ids(*tokens), max_new_tokens=3))
        assert room is None or cache.stats.tokens <= room


def test_streams_that_share_a_beginning_go_on_beside_each_other():
    model = tiny_model()
    cache = PromptCache(model)
    cache.read(ids(5, 6, 7, 8, 9))
    prompts = ids(5, 6, 7, 8, 9, 10), ids(5, 6, 7, 20)
    streams = [cache.stream(prompt, max_new_tokens=4) for prompt in prompts]
    for _ in zip(*streams, strict=True):
        pass
    for prompt, stream in zip(prompts, streams, strict=True):
        assert torch.equal(stream.result.sequences, generate(model, prompt, max_new_tokens=4))


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3, "seed": 1}])
def test_beams_and_samples_begin_from_it_too(how):
    model = tiny_model()
    cache, prompt = PromptCache(model), ids(5, 6, 7, 8, 9)
    cache.read(prompt)
    stream = cache.stream(prompt, max_new_tokens=4, **how)
    list(stream)
    assert torch.equal(stream.result.sequences, generate(model, prompt, max_new_tokens=4, **how))
    assert cache.stats.reused == 4


def test_a_stream_that_is_left_early_leaves_what_it_has_read():
    model = tiny_model()
    cache, prompt = PromptCache(model), ids(5, 6, 7, 8, 9)
    with cache.stream(prompt, max_new_tokens=9) as stream:
        next(stream)
    assert cache.stats.tokens >= prompt.shape[1]


def test_the_least_recently_used_entry_makes_room():
    cache = PromptCache(tiny_model(), max_tokens=9)
    first, second, third = ids(5, 6, 7, 8, 9), ids(20, 21, 22, 23, 24), ids(30, 31, 32)
    for prompt in (first, second, first, third):
        cache.read(prompt)
    assert cache.stats.evicted == 1
    reused = cache.stats.reused
    cache.read(first)
    assert cache.stats.reused == reused + 4
    cache.read(second)
    assert cache.stats.reused == reused + 4


def test_bytes_are_a_limit_too():
    model = tiny_model()
    free = PromptCache(model)
    free.read(ids(5, 6, 7, 8, 9))
    tight = PromptCache(model, max_bytes=free.stats.bytes)
    tight.read(ids(5, 6, 7, 8, 9))
    tight.read(ids(20, 21, 22))
    assert tight.stats.bytes <= free.stats.bytes
    assert tight.stats.evicted == 1


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba"])
def test_what_is_held_survives_in_a_file(name, tmp_path):
    model, prompt = tiny_model(name), ids(5, 6, 7, 8, 9, 10, 11)
    cache = PromptCache(model)
    list(cache.stream(prompt, max_new_tokens=3))
    cache.save(tmp_path / "prompts.safetensors")
    other = PromptCache(model)
    other.load(tmp_path / "prompts.safetensors")
    stream = other.stream(prompt, max_new_tokens=4)
    list(stream)
    assert other.stats.reused == prompt.shape[1] - 1
    assert torch.equal(stream.result.sequences, generate(model, prompt, max_new_tokens=4))


@pytest.fixture
def saved(tmp_path):
    cache = PromptCache(tiny_model())
    cache.read(ids(5, 6, 7, 8, 9))
    cache.save(tmp_path / "prompts.safetensors")
    return tmp_path / "prompts.safetensors"


def header(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["unspool"])


def edit_tensor(path):
    tensors, told = load_file(path), json.dumps(header(path))
    tensors[next(iter(tensors))].add_(1)
    save_file(tensors, path, metadata={"unspool": told})


def edit_header(path, change):
    told = header(path)
    change(told["entries"][0]["layers"][0])
    save_file(load_file(path), path, metadata={"unspool": json.dumps(told)})


DAMAGE = {
    "another file": lambda path: path.write_text("no tensors here"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "edited tensors": edit_tensor,
    "no header": lambda path: save_file(load_file(path), path),
    "another layer": lambda path: edit_header(path, lambda layer: layer.update(kind="StaticLayer")),
    "an attribute that there is not": lambda path: edit_header(path, lambda layer: layer["plain"].update(update=1)),
    "a private attribute": lambda path: edit_header(path, lambda layer: layer["plain"].update(_rooms=1)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_in_words_and_the_cache_goes_on(saved, damage):
    damage(saved)
    cache = PromptCache(tiny_model())
    cache.read(ids(20, 21, 22))
    with pytest.raises(CacheError, match=r"prompts\.safetensors"):
        cache.load(saved)
    assert cache.stats.entries == 1


def test_a_file_of_another_model_is_refused(saved):
    with pytest.raises(CacheError, match="another model"):
        PromptCache(tiny_model("gpt2")).load(saved)


def test_what_ids_do_not_tell_is_read_as_usual():
    model = tiny_model()
    cache, prompt = PromptCache(model), ids(5, 6, 7, 8, 9)
    cache.read(prompt)
    batch = prompt.repeat(2, 1)
    stream = cache.stream(batch, max_new_tokens=3)
    list(stream)
    assert torch.equal(stream.result.sequences, generate(model, batch, max_new_tokens=3))
    assert cache.stats.hits == 0


def test_wrong_limits_and_models_are_refused():
    with pytest.raises(ArgumentError, match="max_tokens=0"):
        PromptCache(tiny_model(), max_tokens=0)
    with pytest.raises(UnsupportedError, match="encoder"):
        PromptCache(tiny_model("t5"))
    with pytest.raises(ArgumentError, match="one row"):
        PromptCache(tiny_model()).read(torch.ones(2, 3, dtype=torch.long))
