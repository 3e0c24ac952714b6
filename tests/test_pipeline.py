"""The five stages: each can be called alone, replaced, and says so when it fails."""

from __future__ import annotations

import pytest
import torch

from tiny import prompt, tiny_model
from unspool import Pipeline, PrefillProgress, Step, decoding_method, generate, generate_stream, register_family, stages
from unspool.errors import ArgumentError
from unspool.families.decoder_only import DecoderOnly
from unspool.plan import Request
from unspool.sinks import CollectSink

NAMES = ["configure", "inputs", "constraints", "prefill", "decode"]


def run(stage):
    """The events of a stage, and what it returns."""
    events = []
    while True:
        try:
            events.append(next(stage))
        except StopIteration as end:
            return events, end.value


def test_the_stages_can_be_called_one_by_one():
    model = tiny_model()
    request = Request(model=model, kwargs={**prompt(2), "max_new_tokens": 4, "do_sample": False})
    events, plan = run(stages.configure(request))
    assert (events, plan.method.name) == ([], "greedy_search")
    events, inputs = run(stages.inputs(plan))
    assert (events, inputs.input_ids.shape) == ([], (2, 7))
    events, constraints = run(stages.constraints(plan, inputs))
    assert [type(criterion).__name__ for criterion in constraints.criteria] == ["MaxLengthCriteria", "EosTokenCriteria"]
    events, state = run(stages.prefill(plan, inputs, constraints))
    assert events == [PrefillProgress(0, 7), PrefillProgress(7, 7)]
    steps, result = run(stages.decode(plan, state))
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert torch.equal(result.sequences, model.generate(**prompt(2), max_new_tokens=4, do_sample=False))


@pytest.mark.parametrize("name", NAMES)
def test_a_replaced_stage_is_used_and_leaves_the_others_as_they_are(name):
    used = []

    def mine(*records):
        used.append(name)
        return (yield from getattr(stages, name)(*records))

    model = tiny_model()
    collect = CollectSink()
    generate_stream(model, **prompt(), max_new_tokens=4, pipeline=Pipeline().replace(**{name: mine})).to(collect)
    assert used == [name]
    assert torch.equal(collect.output, model.generate(**prompt(), max_new_tokens=4))


@pytest.mark.parametrize("name", NAMES)
def test_an_error_says_which_stage_it_came_from(name):
    def broken(*records):
        raise OSError("broken")
        yield

    with pytest.raises(OSError, match="broken") as caught:
        generate_stream(tiny_model(), **prompt(), pipeline=Pipeline().replace(**{name: broken}), max_new_tokens=2).to()
    assert caught.value.__notes__ == [f"unspool: raised in the {name!r} stage"]


def test_events_come_in_order_prefill_first():
    stream = generate_stream(tiny_model(), **prompt(), max_new_tokens=2, prefill_chunk_size=3)
    kinds = [type(event) for event in stream.events()]
    assert kinds == [PrefillProgress] * 4 + [Step] * 2


def test_a_plan_can_be_used_again():
    model = tiny_model()
    _, plan = run(stages.configure(Request(model=model, kwargs={**prompt(), "max_new_tokens": 3})))

    def given(request):
        return plan
        yield

    again = Pipeline().replace(configure=given)
    found = [generate_stream(model, pipeline=again, input_ids=prompt()["input_ids"]).to().sequences for _ in range(2)]
    assert torch.equal(*found)


def test_a_registered_family_is_used_until_it_is_taken_back():
    class Shifted(DecoderOnly):
        name = "shifted"

        def start(self, model, tensor, name, config, kwargs):
            ids, rest = super().start(model, tensor, name, config, kwargs)
            return ids.flip(-1), rest

    model, ids = tiny_model(), prompt()["input_ids"]
    forget = register_family(lambda candidate: candidate is model, Shifted())
    mine = generate(model, ids, max_new_tokens=4)
    forget()
    assert torch.equal(mine, model.generate(ids.flip(-1), max_new_tokens=4))
    assert torch.equal(generate(model, ids, max_new_tokens=4), model.generate(ids, max_new_tokens=4))


@decoding_method("cautious")
def cautious(state):
    """The likeliest token where the model is sure, else one of the likeliest three by turns."""
    while state.running:
        scores = state.score(state.forward())
        best = scores.topk(3).indices
        sure = scores.softmax(-1).amax(-1) > 0.5
        yield state.append(torch.where(sure, best[:, 0], best[:, state.steps % 3]))


@pytest.mark.parametrize("decoding", ["cautious", cautious], ids=["by name", "by function"])
def test_a_new_decoding_method_streams_like_the_others(decoding):
    model, ids = tiny_model(), prompt(2)["input_ids"]
    expected = ids
    for number in range(6):
        logits = model(expected).logits[:, -1]
        best = logits.topk(3).indices
        token = torch.where(logits.softmax(-1).amax(-1) > 0.5, best[:, 0], best[:, number % 3])
        expected = torch.cat([expected, token[:, None]], dim=-1)
    collect = CollectSink()
    stream = generate_stream(model, ids, max_new_tokens=6, eos_token_id=None, decoding=decoding, sinks=[collect])
    tokens = torch.stack([step.tokens for step in stream], dim=-1)
    assert torch.equal(tokens, expected[:, 7:])
    assert torch.equal(collect.output, expected)


def test_an_unknown_decoding_method_is_refused_with_the_known_ones():
    with pytest.raises(ArgumentError, match=r"'none_such'.*beam_search"):
        generate_stream(tiny_model(), **prompt(), decoding="none_such")
