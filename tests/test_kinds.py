"""Every class with a `generate` of its own, streamed and compared with that; and the page that tells of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import transformers

from test_model_kinds import OWN, blank
from unspool import generate_stream
from unspool.events import Phase
from unspool.families.refused import refusal
from zoo import common
from zoo.kinds import MAKERS, METHODS, UNPROVED, copied, here, prove

DOCS = Path(__file__).parent.parent / "docs"
present = [name for name in MAKERS if here(name)]


@pytest.mark.parametrize("name", present)
def test_what_is_streamed_is_what_its_own_generate_makes(name):
    proved = {method: prove(name, method) for method in METHODS}
    assert "equal" in proved.values()


def test_every_class_with_a_generate_of_its_own_is_proved_or_told_why_not():
    proved = {name.split()[0] for name in MAKERS}
    lacking = [name for name in OWN if name not in proved and name not in UNPROVED and not refusal(blank(name))]
    assert lacking == []


PHASES = {
    "BlipForConditionalGeneration": ["text_decoder"],
    "ClvpModelForConditionalGeneration": ["speech_decoder_model"],
    "Qwen2_5OmniForConditionalGeneration": ["thinker", "talker"],
    "SeamlessM4TForTextToSpeech": ["text_decoder", "t2u_model"],
    "SeamlessM4TForTextToText": [],
}


@pytest.mark.parametrize(("name", "phases"), PHASES.items(), ids=list(PHASES))
def test_each_part_that_generates_is_a_phase(name, phases):
    model, inputs = MAKERS[name]()
    length = {} if name.startswith("Qwen") else {"max_new_tokens": 4, "return_dict_in_generate": "Clvp" in name}
    events = list(generate_stream(model, **{**copied(inputs), **length}).events())
    assert [event.name for event in events if isinstance(event, Phase)] == phases


def test_an_image_of_janus_is_streamed_token_by_token():
    model, inputs = MAKERS["JanusForConditionalGeneration (image)"]()
    steps = list(generate_stream(model, **copied(inputs), do_sample=False))
    assert len(steps) == 16
    for step in steps:
        assert step.scores.argmax(-1).tolist() == step.tokens.tolist()
        assert step.logits.shape == step.scores.shape
    assert set(steps[-1].ended) == {0, 1}


# -------------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_models", DOCS / "make_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(version):
    text = (DOCS / "models.md").read_text()
    if f"Made with transformers {version}." not in text:
        pytest.skip("the page is about another release")
    return text


def test_the_page_of_models_tells_what_is_proved_here(maker):
    text = told(transformers.__version__)
    rows = [" | ".join(row) for row in maker.own_rows()]
    assert [row for row in rows if row not in text] == [], "make models"


def test_the_page_of_models_names_every_class_for_text():
    text = told(transformers.__version__)
    assert [name for name in common.NAMES if f"`{name}`" not in text] == [], "make models"


@pytest.mark.slow
def test_the_page_of_models_is_what_would_be_written(maker):
    assert told(transformers.__version__) == maker.page(), "make models"
