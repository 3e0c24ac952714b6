"""Errors arrive as themselves, after the steps made before them, and leave a readable result."""

from __future__ import annotations

import traceback

import pytest
import torch

from tiny import prompt, tiny_model
from unspool import FinishReason, generate_stream
from unspool.errors import CriterionError


class At:
    """A processor or criterion that does something when a row has grown by some tokens."""

    def __init__(self, act, after=2):
        self.act, self.length = act, 7 + after

    def __call__(self, ids, scores, **kwargs):
        return self.act(scores) if ids.shape[1] >= self.length else self.usual(ids, scores)

    def usual(self, ids, scores):
        return scores


class Criterion(At):
    def usual(self, ids, scores):
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def fail(_):
    raise KeyError("mine")


def pull(stream):
    """The steps before an error, and the error."""
    steps = []
    with pytest.raises((KeyError, CriterionError, RuntimeError)) as caught:
        steps.extend(stream)
    return steps, caught.value


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "model", "sink"])
def test_the_original_error_arrives_after_the_steps_before_it(where):
    model, asked = tiny_model(), {}
    if where == "model":
        count = iter(range(100))
        model.register_forward_pre_hook(lambda *_: fail(0) if next(count) == 2 else None)
    elif where == "sink":

        class Sink:
            def open(self, opening): ...

            def take(self, event):
                if getattr(event, "index", 0) == 2:
                    fail(0)

            def close(self, result, error): ...

        asked["sinks"] = [Sink()]
    else:
        asked[where] = [At(fail) if where == "logits_processor" else Criterion(fail, after=3)]
    stream = generate_stream(model, **prompt(), max_new_tokens=9, **asked)
    steps, error = pull(stream)
    assert [step.index for step in steps] == [0, 1]
    assert isinstance(error, KeyError)
    assert error.args == ("mine",)
    assert "in fail" in "".join(traceback.format_tb(error.__traceback__))
    assert stream.result.finishes[0].reason is FinishReason.ERROR
    assert stream.result.finishes[0].detail is error
    if where != "sink":
        assert any("'decode' stage" in note for note in error.__notes__)


@pytest.mark.parametrize("wrong", [lambda s: s[:, :-1], lambda s: None, lambda s: s[0]], ids=["narrow", "none", "row"])
def test_a_processor_with_a_wrong_result_is_named(wrong):
    steps, error = pull(generate_stream(tiny_model(), **prompt(2), max_new_tokens=9, logits_processor=[At(wrong)]))
    assert len(steps) == 2
    assert isinstance(error, CriterionError)
    assert "logits processor At" in str(error)


@pytest.mark.parametrize(
    "wrong", [lambda s: torch.zeros(2, 1, dtype=torch.bool), lambda s: torch.zeros(2), lambda s: "no"]
)
def test_a_criterion_with_a_wrong_result_is_named(wrong):
    asked = {"stopping_criteria": [Criterion(wrong, after=3)]}
    steps, error = pull(generate_stream(tiny_model(), **prompt(2), max_new_tokens=9, eos_token_id=None, **asked))
    assert len(steps) == 2
    assert isinstance(error, CriterionError)
    assert "stopping criterion Criterion" in str(error)


def test_logits_that_are_no_numbers_are_an_error_while_sampling():
    asked = {"logits_processor": [At(lambda scores: scores * float("nan"))], "do_sample": True, "top_k": 0}
    steps, error = pull(generate_stream(tiny_model(), **prompt(), max_new_tokens=9, eos_token_id=None, **asked))
    assert len(steps) == 2
    assert isinstance(error, RuntimeError)
    assert "nan" in str(error)
