"""A stream on disk: it goes on in another place as if it had never stopped, and no other file gets in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import generate_stream, resume
from unspool.control.saving import seal
from unspool.errors import ArgumentError, CacheError, UnsupportedError

PLAIN = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
METHODS = [
    pytest.param({}, id="greedy"),
    pytest.param(dict(do_sample=True, seed=3), id="sample"),
    pytest.param(dict(num_beams=3), id="beams"),
    pytest.param(dict(num_beams=3, do_sample=True, seed=3), id="beam-sample"),
]


def tokens(steps):
    return [step.tokens.tolist() for step in steps]


def stream(name="llama", rows=2, **settings):
    ids = prompt(rows, 5, ragged=rows > 1 and name != "mamba")
    return generate_stream(tiny_model(name), **ids, **{**PLAIN, **settings})


def saved(path, name="llama", made=3, **settings):
    one = stream(name, **settings)
    list(one.steps(made))
    one.save(path)
    return one


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stream.safetensors"


@pytest.mark.parametrize("made", [0, 3])
@pytest.mark.parametrize("settings", METHODS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "t5", "bart", "mistral", "gemma3_text", "mamba"])
def test_a_resumed_stream_says_what_the_saved_one_goes_on_to_say(path, name, settings, made):
    one = saved(path, name, made, **settings, repetition_penalty=1.3)
    again = resume(tiny_model(name), path)
    assert tokens(again) == tokens(one)
    assert again.result.sequences.tolist() == one.result.sequences.tolist()
    assert again.result.finishes == one.result.finishes
    assert (again.result.steps, again.result.forwards) == (one.result.steps, one.result.forwards)


def test_groups_of_beams_are_resumed(path):
    one = saved(path, num_beams=4, num_beam_groups=2, diversity_penalty=0.5)
    again = resume(tiny_model(), path)
    assert tokens(again) == tokens(one)
    assert again.result.sequences.tolist() == one.result.sequences.tolist()


def test_drafts_are_made_anew(path):
    ids = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])
    one = generate_stream(tiny_model(), ids, **PLAIN, prompt_lookup_num_tokens=3)
    list(one.steps(3))
    one.save(path)
    assert tokens(resume(tiny_model(), path)) == tokens(one)


def test_what_was_forced_or_stopped_still_holds(path):
    one = stream()
    list(one.steps(2))
    one.force([20, 21], 1)
    one.stop(0)
    one.save(path)
    assert tokens(resume(tiny_model(), path)) == tokens(one)


def test_a_resumed_stream_can_be_forked_rewound_and_saved_again(path):
    whole = tokens(stream())
    saved(path, made=2)
    again = resume(tiny_model(), path)
    list(again.steps(3))
    again.rewind(2)
    [branch] = again.fork()
    branch.save(path)
    assert tokens(resume(tiny_model(), path)) == tokens(branch) == tokens(again) == whole[3:]


def test_the_text_goes_on_where_it_was(path):
    settings = dict(rows=1, tokenizer=tiny_tokenizer(), stop_strings="w9 w9")
    whole = "".join(chunk.text for chunk in stream(**settings).text())
    one = stream(**settings)
    view = one.text()
    begun = next(view).text + next(view).text
    one.save(path)
    again = resume(tiny_model(), path, tokenizer=tiny_tokenizer())
    assert begun + "".join(chunk.text for chunk in again.text()) == whole


def test_another_process_goes_on_with_it(path):
    one = saved(path, do_sample=True, seed=3)
    code = (
        "from tiny import tiny_model\nfrom unspool import resume\n"
        f"print([step.tokens.tolist() for step in resume(tiny_model(), {str(path)!r})])"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert json.loads(made.stdout) == tokens(one)


# ------------------------------------------------------------------------------------------------------- bad files


def edited(path, change):
    """Writes the file anew, with a header or tensors that were changed, and a digest that fits them."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["unspool"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.pop("digest")
    change(header, tensors)
    save_file(tensors, path, metadata={"unspool": json.dumps({**header, "digest": seal(header, tensors)})})


def test_another_model_is_refused(path):
    saved(path)
    with pytest.raises(CacheError, match="another model"):
        resume(tiny_model("gpt2"), path)
    with pytest.raises(CacheError, match="another model"):
        resume(tiny_model(seed=1), path)


def test_a_truncated_file_is_refused(path):
    saved(path)
    whole = path.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CacheError):
            resume(tiny_model(), path)


def test_a_changed_byte_is_found(path):
    saved(path)
    whole = bytearray(path.read_bytes())
    for place in range(len(whole) - 1, 8, -max(1, len(whole) // 40)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises((CacheError, ArgumentError)):
            resume(tiny_model(), path)


HOSTILE = {
    "ids out of the vocabulary": lambda header, tensors: tensors.update(
        {name: t + 100_000 for name, t in tensors.items() if t.dtype == torch.int64 and t.ndim == 2}
    ),
    "no tensors": lambda header, tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("cache")],
    "another method": lambda header, tensors: header.update(method="os.system"),
    "a cache that is none": lambda header, tensors: header["cache"].update(name="__class__"),
    "another kind of layer": lambda header, tensors: header["cache"]["self"][0].update(kind="Popen"),
    "a part of no layer": lambda header, tensors: header["cache"]["self"][0]["plain"].update(__class__=1),
    "a part that is a method": lambda header, tensors: header["cache"]["self"][0]["plain"].update(update=1),
    "too few finishes": lambda header, tensors: header["fields"]["dict"].append(["finishes", {"tuple": []}]),
    "fields of no kind": lambda header, tensors: header.update(fields={"pickle": "x"}),
    "no fields": lambda header, tensors: header.update(fields={"dict": []}),
    "a count that is text": lambda header, tensors: header["fields"]["dict"][0].__setitem__(
        1, {"dict": [["steps", "x"]]}
    ),
    "another version": lambda header, tensors: header.update(format="unspool-stream-0"),
    "other transformers": lambda header, tensors: header.update(transformers="4"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_words(path, change):
    saved(path)
    edited(path, change)
    with pytest.raises((CacheError, ArgumentError)):
        resume(tiny_model(), path)


@pytest.mark.parametrize("random", [torch.zeros(0, dtype=torch.uint8), torch.full((5056,), 255, dtype=torch.uint8)])
def test_a_made_up_state_of_randomness_is_refused(path, random):
    saved(path, do_sample=True, seed=3)
    edited(path, lambda header, tensors: tensors.update({n: random for n, t in tensors.items() if len(t) == 5056}))
    with pytest.raises(CacheError):
        resume(tiny_model(), path)


def test_a_file_that_is_no_stream_is_refused(path):
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(CacheError):
        resume(tiny_model(), path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(CacheError, match="no stream"):
        resume(tiny_model(), path)
    with pytest.raises(CacheError, match="no file"):
        resume(tiny_model(), path.with_name("nothing"))


def test_processors_of_the_callers_must_be_given_again(path):
    class Twenty:
        def __call__(self, ids, scores):
            return scores.index_fill(1, torch.tensor([20]), 100.0)

    saved(path, logits_processor=[Twenty()])
    with pytest.raises(ArgumentError, match="Twenty"):
        resume(tiny_model(), path)
    assert tokens(resume(tiny_model(), path, logits_processor=[Twenty()]))[0] == [20, 20]


@pytest.mark.parametrize(
    "settings", [dict(penalty_alpha=0.6, top_k=3), dict(guidance_scale=1.5), dict(cache_implementation="static")]
)
def test_what_cannot_be_saved_is_refused_and_the_stream_goes_on(path, settings):
    one = stream(rows=1, **settings)
    list(one.steps(2))
    with pytest.raises(UnsupportedError):
        one.save(path)
    assert len(list(one)) == 6
