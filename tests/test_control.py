"""Commands between two steps: stop, force, replace, rewind. What comes after is as if nothing else had happened."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from tiny import EOS, prompt, tiny_model, tiny_tokenizer
from unspool import FinishReason, Step, explore, generate_stream
from unspool.control.commands import Force, Replace, Rewind
from unspool.errors import ArgumentError, CacheError, SinkError, StreamError, UnsupportedError
from unspool.events import Retract
from unspool.sinks import CallbackSink, CollectSink, TextSink

SAMPLE = dict(max_new_tokens=8, do_sample=True, seed=1, eos_token_id=None)
PLAIN = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)


def tokens(steps):
    return [step.tokens.tolist() for step in steps]


def stream(name="llama", rows=2, **settings):
    ids = prompt(rows, 5, ragged=rows > 1 and name != "mamba")
    return generate_stream(tiny_model(name), **ids, **{**PLAIN, **settings})


# ------------------------------------------------------------------------------------------------------------ stop


def test_a_stopped_row_ends_and_the_others_go_on_undisturbed():
    whole, one = tokens(stream(do_sample=True, seed=1)), stream(do_sample=True, seed=1)
    made = [next(one), next(one)]
    one.stop(0)
    made += one
    assert [row[1] for row in tokens(made)] == [row[1] for row in whole]
    assert [finish.reason for finish in one.result.finishes] == [FinishReason.STOPPED, FinishReason.MAX_LENGTH]
    assert [bool(step.live[0]) for step in made] == [True, True] + [False] * 6


def test_the_step_after_it_tells_that_a_row_was_stopped():
    one = stream()
    next(one)
    one.stop(1)
    assert next(one).ended[1].reason is FinishReason.STOPPED


def test_stopping_all_rows_ends_the_stream_without_an_error():
    one = stream()
    next(one)
    one.stop()
    assert list(one) == []
    assert one.result.steps == 1
    assert not one.result.complete


def test_a_stopped_prompt_keeps_its_beams_as_they_are_and_leaves_the_others_alone():
    whole, one = stream(num_beams=2), stream(num_beams=2)
    whole_ids = whole.to().sequences
    next(one), next(one)
    one.stop(0)
    result = one.to()
    assert result.finishes[0].reason is FinishReason.STOPPED
    assert result.sequences[1].tolist() == whole_ids[1].tolist()


# ----------------------------------------------------------------------------------------------------------- force


@pytest.mark.parametrize("settings", [{}, dict(do_sample=True, seed=1), dict(prompt_lookup_num_tokens=3)])
def test_forced_tokens_come_next_and_are_marked(settings):
    one = stream(rows=1, **settings)
    while next(one).more:
        pass
    at = one.result.steps
    one.force([11, 12])
    made = list(one)
    assert tokens(made)[:2] == [[11], [12]]
    assert [step.forced is not None and bool(step.forced[0]) for step in made[:3]] == [True, True, False]
    assert len(made) == 8 - at


def test_after_forced_tokens_the_model_goes_on_as_from_a_prompt_that_holds_them():
    ids = prompt(1, 5)["input_ids"]
    one = generate_stream(tiny_model(), ids, **PLAIN)
    first = int(next(one).tokens)
    one.force(11)
    rest = tokens(one)[1:]
    longer = torch.cat([ids, torch.tensor([[first, 11]])], dim=1)
    assert rest == tokens(generate_stream(tiny_model(), longer, **{**PLAIN, "max_new_tokens": 6}))


def test_rows_can_be_forced_apart_and_before_the_first_step():
    one = stream()
    one.force({0: 11, 1: [12, 13]})
    made = tokens(one)
    assert (made[0], made[1][1]) == ([11, 12], 13)


def test_text_is_forced_by_the_tokenizer_of_the_call():
    one = stream(rows=1, tokenizer=tiny_tokenizer())
    one.force("w20 w21")
    assert tokens(one)[:2] == [[20], [21]]


def test_a_forced_token_keeps_the_models_own_logprob():
    one = stream(rows=1)
    one.force(11)
    step = next(one)
    assert step.logprobs[0] == torch.log_softmax(step.scores, -1)[0, 11]


def test_a_forced_end_ends_the_row():
    one = stream(eos_token_id=EOS, pad_token_id=0)
    next(one)
    one.force(EOS, 0)
    assert next(one).ended[0].reason is FinishReason.EOS


def test_a_token_forced_under_beams_is_taken_by_all_beams_of_the_prompt():
    one = stream(num_beams=3)
    next(one)
    one.force(11, 1)
    step = next(one)
    assert step.tokens.view(2, 3)[1].tolist() == [11, 11, 11]
    assert step.forced.tolist() == [False] * 3 + [True] * 3


# --------------------------------------------------------------------------------------------------------- replace


def test_a_replaced_token_counts_as_if_it_had_been_chosen():
    one, other = stream(rows=1), stream(rows=1)
    next(one)
    step = next(one)
    again = one.replace(11)
    next(other)
    other.force(11)
    same = next(other)
    assert (again.index, again.tokens.tolist()) == (step.index, [11])
    assert torch.equal(again.logits, same.logits)
    assert tokens(one) == tokens(other)


def test_replace_undoes_the_end_that_the_token_had_brought():
    one = stream(rows=1, eos_token_id=EOS, pad_token_id=0)
    one.force(EOS)
    assert next(one).ended
    assert not one.replace(11).ended
    assert len(list(one)) == 7


def test_iterating_goes_on_after_the_replaced_step_and_does_not_show_it_twice():
    one, seen = stream(rows=1), []
    for step in one:
        seen += [one.replace(20 + step.index)]
    assert tokens(seen) == [[20 + i] for i in range(8)]


# ---------------------------------------------------------------------------------------------------------- rewind

METHODS = [
    pytest.param({}, id="greedy"),
    pytest.param(dict(do_sample=True, seed=3), id="sample"),
    pytest.param(dict(num_beams=3), id="beams"),
    pytest.param(dict(num_beams=3, do_sample=True, seed=3), id="beam-sample"),
]


@pytest.mark.parametrize("settings", METHODS)
@pytest.mark.parametrize("name", ["llama", "bloom", "t5", "bart", "mistral", "gemma3_text", "mamba"])
def test_what_comes_after_a_rewind_is_what_had_come(name, settings):
    settings = {**settings, "repetition_penalty": 1.3}
    whole = tokens(stream(name, **settings))
    for made, back in ((1, 1), (4, 2), (8, 8), (8, 3)):
        one = stream(name, **settings, snapshot_every=3)
        got = tokens(one.steps(made))
        one.rewind(back)
        assert got[: made - back] + tokens(one) == whole


@pytest.mark.parametrize("seed", [None, 5])
def test_a_rewind_puts_back_the_source_of_randomness(seed):
    torch.manual_seed(9)
    one = stream(do_sample=True, seed=seed)
    first = tokens(one.steps(4))
    one.rewind(4)
    assert tokens(one.steps(4)) == first


def test_a_rewind_puts_back_what_processors_remember():
    class Counts:
        calls = 0

        def __call__(self, ids, scores):
            self.calls += 1
            return scores.index_fill(1, torch.tensor([20 + self.calls]), 100.0)

    one = stream(rows=1, logits_processor=[Counts()])
    first = tokens(one.steps(3))
    one.rewind(2)
    assert tokens(one.steps(2)) == first[1:]


def test_a_rewind_with_drafts_goes_on_with_the_same_tokens():
    ids = torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6]])
    settings = {**PLAIN, "prompt_lookup_num_tokens": 3}
    whole = tokens(generate_stream(tiny_model(), ids, **settings))
    for made in range(1, 9):
        for back in range(1, made + 1):
            one = generate_stream(tiny_model(), ids, **settings)
            got = tokens(one.steps(made))
            one.rewind(back)
            assert got[: made - back] + tokens(one) == whole


def test_hidden_states_come_again_after_a_rewind_before_the_first_step():
    one = stream(rows=1, output_hidden_states=True, return_dict_in_generate=True)
    first = next(one)
    one.rewind(1)
    again = next(one)
    assert torch.allclose(first.outputs.hidden_states[-1][:, -1], again.outputs.hidden_states[-1][:, -1], atol=1e-6)


def test_collected_outputs_have_only_the_steps_that_hold():
    sink = CollectSink()
    one = stream(sinks=[sink], return_dict_in_generate=True, output_scores=True)
    list(one.steps(4))
    one.rewind(3)
    list(one)
    assert len(sink.output.scores) == 8


@pytest.mark.parametrize("stops", [None, "w3"])
def test_text_is_taken_back_with_its_steps(stops):
    def text_of(chunks):
        text = ""
        for chunk in chunks:
            text = text[: len(text) - chunk.back] + chunk.text
        return text

    settings = dict(rows=1, tokenizer=tiny_tokenizer(), do_sample=True, seed=2, stop_strings=stops)
    whole = text_of(stream(**settings).text())
    one = stream(**settings)
    view = one.text()
    chunks = [next(view) for _ in range(3)]
    one.rewind(2)
    assert text_of([*chunks, *view]) == whole


def test_text_of_beams_comes_again_when_the_first_step_is_taken_back():
    settings = dict(num_beams=3, max_new_tokens=6, snapshot_every=1, tokenizer=tiny_tokenizer())
    with generate_stream(tiny_model(), **prompt(1), **settings) as one:
        one.force([80])
        view = one.text()
        assert next(view).text.strip() == "w80"
        one.rewind(1)
        one.force([51])
        chunks = list(view)
        assert chunks[0].back == len("w80")
        assert "".join(chunk.text for chunk in chunks).startswith("w51 ")


def test_events_tell_what_is_void():
    one = stream()
    events = one.events()
    while not isinstance(next(events), Step):
        pass
    one.rewind()
    assert next(events) == Retract(1, 0)


# ------------------------------------------------------------------------------------------------------------ fork


@pytest.mark.parametrize("settings", METHODS)
@pytest.mark.parametrize("name", ["llama", "bloom", "t5", "bart", "mistral", "gemma3_text", "mamba", "rwkv"])
@pytest.mark.parametrize("made", [0, 3])
def test_forks_go_on_as_the_stream_would_and_do_not_disturb_it(name, settings, made):
    if name == "rwkv" and "num_beams" in settings:
        pytest.skip("beams can't reorder its state")
    settings = {**settings, "repetition_penalty": 1.3}
    rest = tokens(stream(name, **settings))[made:]
    one = stream(name, **settings)
    list(one.steps(made))
    left, right = one.fork(2)
    mixed = [[step.tokens.tolist() for step in each] for each in zip(left, one, strict=True)]
    assert [pair[0] for pair in mixed] == rest
    assert [pair[1] for pair in mixed] == rest
    assert tokens(right) == rest
    assert left.result.sequences.tolist() == one.result.sequences.tolist()


def test_forks_with_seeds_differ_and_the_stream_goes_on_as_if_there_were_none():
    whole, one = tokens(stream(do_sample=True, seed=1)), stream(do_sample=True, seed=1)
    got = tokens(one.steps(2))
    branches = one.fork(4, seed=7)
    said = {str(tokens(branch)) for branch in branches}
    assert len(said) == 4
    assert got + tokens(one) == whole


def test_a_fork_can_be_forked_rewound_and_steered():
    one = stream(rows=1)
    list(one.steps(2))
    [branch] = one.fork()
    branch.force(11)
    next(branch), next(branch)
    [twig] = branch.fork()
    assert tokens(twig) == tokens(branch.steps(4))
    branch.rewind(5)
    assert tokens(branch)[0] != [11]  # what was forced after the fork is undone as well
    assert len(list(one)) == 6


def layer(of):
    return of._source.state.carried.cache.layers[0]


def test_forks_hold_the_past_once():
    one = stream(rows=1)
    next(one)
    whole = layer(one).keys.data_ptr()
    branches = one.fork(3)
    for branch in branches:
        list(branch.steps(3))
    assert {layer(branch).past[0].data_ptr() for branch in branches} == {whole}
    assert [layer(branch).count for branch in branches] == [3, 3, 3]


def test_a_fork_that_grows_long_gets_a_past_of_its_own():
    plain = tokens(stream(rows=1, max_new_tokens=90))
    one = stream(rows=1, max_new_tokens=90)
    [branch] = one.fork()
    assert tokens(branch) == plain == tokens(one)
    assert branch.result.steps == 90


def test_forks_pulled_side_by_side_share_their_forwards():
    model, ids = tiny_model(), prompt(1, 5)["input_ids"]
    one = generate_stream(model, ids, **SAMPLE)
    next(one)
    calls = []
    model.register_forward_hook(lambda *given: calls.append(1))
    branches = one.fork(4, seed=1)
    together = [[step.tokens.tolist() for step in steps] for steps in zip(*branches, strict=True)]
    assert len(calls) == 7
    apart = [tokens(branch) for branch in one.fork(1, seed=1) + one.fork(1, seed=2)]
    assert [[made[0], made[1]] for made in together] == [list(pair) for pair in zip(*apart, strict=True)]


def test_forks_pulled_side_by_side_can_still_be_steered():
    one = stream(rows=1)
    list(one.steps(2))
    plain = tokens(one.fork()[0])
    left, middle, right = one.fork(3)
    for _ in range(2):
        next(left)  # reads for all three
        next(middle), next(right)
    next(left)
    middle.rewind(2)
    right.replace(11)
    [twig] = right.fork()
    assert tokens(middle) == plain
    assert tokens(left) == plain[3:]
    assert tokens(twig) == tokens(right) != plain[2:]


def test_the_text_of_a_fork_goes_on_where_the_streams_had_come_to():
    settings = dict(rows=1, tokenizer=tiny_tokenizer())
    whole = "".join(chunk.text for chunk in stream(**settings).text())
    one = stream(**settings)
    view = one.text()
    begun = next(view).text + next(view).text
    [branch] = one.fork()
    assert begun + "".join(chunk.text for chunk in branch.text()) == whole


def test_a_processor_that_counts_counts_for_each_fork_apart():
    class Counts:
        calls = 0

        def __call__(self, ids, scores):
            self.calls += 1
            return scores.index_fill(1, torch.tensor([20 + self.calls]), 100.0)

    one = stream(rows=1, logits_processor=[Counts()])
    list(one.steps(2))
    [branch] = one.fork()
    assert tokens(branch) == tokens(one) == [[23 + i] for i in range(6)]


# ------------------------------------------------------------------------------------------------- activations


def test_an_intervention_changes_the_steps_it_is_for_and_no_others():
    whole, one = list(stream(rows=1)), stream(rows=1)
    one.intervene(0, lambda hidden, step: hidden + 1, from_step=3, to_step=4)
    changed = list(one)
    same = [torch.equal(a.logits, b.logits) for a, b in zip(whole, changed, strict=True)]
    assert same[:4] == [True, True, True, False]


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bart", "mamba"])
def test_a_layer_is_found_by_number_name_or_itself(name):
    seen = []
    one = stream(name, rows=1)
    model = one._source.plan.model
    one.intervene(-1, lambda hidden, step: seen.append((step, "number")))
    one.intervene(model.get_output_embeddings(), lambda hidden, step: seen.append((step, "itself")))
    next(one)
    assert seen == [(0, "number"), (0, "itself")]


def test_other_streams_of_the_model_do_not_see_an_intervention():
    model, ids = tiny_model(), prompt(1, 5)
    one, other = (generate_stream(model, **ids, **PLAIN) for _ in range(2))
    one.intervene(0, lambda hidden, step: hidden * 0)
    mixed = list(zip(one, other, strict=True))
    assert tokens(step for _, step in mixed) == tokens(generate_stream(model, **ids, **PLAIN))
    assert tokens(step for step, _ in mixed) != tokens(step for _, step in mixed)


def test_hooks_are_gone_after_an_error_in_the_function():
    model = tiny_model()
    one = generate_stream(model, **prompt(1, 5), **PLAIN)
    one.intervene(0, lambda hidden, step: 1 / 0 if step == 2 else None)
    made = []
    with pytest.raises(ZeroDivisionError):
        made.extend(one)
    assert len(made) == 0 or len(made) == 2
    assert not any(module._forward_hooks for module in model.modules())


def test_an_intervention_can_be_removed():
    seen = []
    one = stream(rows=1)
    taken = one.intervene(0, lambda hidden, step: seen.append(step))
    next(one)
    taken.remove()
    list(one)
    assert seen == [0]


def test_a_wrong_layer_or_result_is_refused():
    one = stream(rows=1)
    for layer in (2, "model.nowhere", torch.nn.Linear(1, 1), 0.5):
        with pytest.raises(ArgumentError, match="layer"):
            one.intervene(layer, lambda hidden, step: None)
    one.intervene(0, lambda hidden, step: hidden[:, :1])
    with pytest.raises(ArgumentError, match="intervene"):
        next(one)


# ---------------------------------------------------------------------------------------------- trees, records


def test_the_tree_has_the_likeliest_tokens_with_the_probabilities_of_a_plain_forward():
    model, ids = tiny_model(), prompt(1, 5)["input_ids"]
    one = generate_stream(model, ids, **PLAIN)
    next(one)
    root = explore(one, width=2, depth=2)
    longer = one.result.sequences
    logprobs = model(longer).logits[0, -1].log_softmax(-1)
    best, best_tokens = logprobs.topk(2)
    assert [child.token for child in root.children] == best_tokens.tolist()
    assert torch.allclose(torch.tensor([child.logprob for child in root.children]), best, atol=1e-5)
    then = model(torch.cat([longer, best_tokens[:1, None]], 1)).logits[0, -1].log_softmax(-1)
    assert root.children[0].children[0].total == pytest.approx(float(best[0] + then.max()), abs=1e-5)
    assert sum(chance for _, chance in root.paths()) < 1
    assert len(list(one)) == 7


def test_the_tree_is_drawn_by_rich():
    from rich.console import Console

    console = Console(width=60, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(explore(stream(rows=1), width=2, depth=2, tokenizer=tiny_tokenizer()))
    console.file.close()
    assert len(console.export_text().splitlines()) == 7


def test_explore_refuses_what_is_no_tree():
    with pytest.raises(ArgumentError, match="width=0"):
        explore(stream(rows=1), width=0)
    with pytest.raises(ArgumentError, match="one row"):
        explore(stream(rows=2))


def test_commands_can_be_sent_as_records():
    one, other, plain = stream(rows=1), stream(rows=1), tokens(stream(rows=1))
    got = [next(one), one.send(Force([11, 12])), one.send(Rewind(1)), one.send(Replace(13))]
    assert tokens(got)[:3] == [plain[0], [11], plain[1]]  # the rewind undid what was forced since
    next(other)
    other.force(13)
    assert tokens(other)[1:] == tokens([got[3], *one])
    with pytest.raises(ArgumentError, match="no command"):
        stream().send("stop")


# ------------------------------------------------------------------------------------------------------- bad input


def test_the_stream_can_be_used_after_each_bad_command():
    whole, one = tokens(stream()), stream()
    got = tokens(one.steps(2))
    bad = [
        (ArgumentError, lambda: one.force(100_000)),
        (ArgumentError, lambda: one.force(-1)),
        (ArgumentError, lambda: one.force([])),
        (ArgumentError, lambda: one.force("w20")),
        (ArgumentError, lambda: one.force(11, 7)),
        (ArgumentError, lambda: one.stop(2)),
        (ArgumentError, lambda: one.stop("all")),
        (ArgumentError, lambda: one.rewind(3)),
        (ArgumentError, lambda: one.rewind(-1)),
        (ArgumentError, lambda: one.rewind(0.5)),
        (ArgumentError, lambda: one.replace([11])),
        (ArgumentError, lambda: one.replace(100_000)),
    ]
    for kind, command in bad:
        with pytest.raises(kind):
            command()
    assert got + tokens(one) == whole


def test_a_command_after_the_end_is_refused():
    one = stream()
    list(one)
    for command in (one.stop, one.rewind, lambda: one.force(11), lambda: one.replace(11)):
        with pytest.raises(StreamError, match="over"):
            command()


def test_a_command_from_another_thread_is_refused():
    one, raised = stream(), []

    def command():
        try:
            one.stop()
        except StreamError as error:
            raised.append(error)

    next(one)
    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert "thread" in str(raised[0])
    assert len(list(one)) == 7


def test_a_command_from_within_a_step_is_refused():
    raised = []

    def callback(step):
        try:
            one.stop()
        except StreamError as error:
            raised.append(error)

    one = stream(sinks=[CallbackSink(callback)])
    list(one)
    assert len(raised) == 8


def test_a_method_that_cannot_take_a_command_says_so():
    one = stream(penalty_alpha=0.6, top_k=3)
    next(one)
    with pytest.raises(UnsupportedError, match="contrastive"):
        one.force(11)
    with pytest.raises(StreamError, match="contrastive"):
        one.rewind()
    beams = stream(num_beams=2)
    next(beams)
    with pytest.raises(UnsupportedError, match="beams"):
        beams.replace(11)


@pytest.mark.parametrize(("name", "why"), [("mistral", "window"), ("mamba", "recurrent")])
def test_a_cache_that_cannot_be_cut_is_refused_with_the_reason(name, why):
    one = stream(name)
    list(one.steps(4))
    with pytest.raises(CacheError, match=f"(?s){why}.*snapshot_every"):
        one.rewind()
    assert len(list(one)) == 4


def test_a_sink_that_cannot_take_text_back_is_named_before_anything_happens():
    import io

    one = stream(rows=1, tokenizer=tiny_tokenizer(), sinks=[TextSink(io.StringIO())])
    next(one)
    with pytest.raises(SinkError, match="TextSink"):
        one.rewind()
    assert len(list(one)) == 7


def test_snapshot_every_must_be_a_number_of_steps():
    with pytest.raises(ArgumentError, match="snapshot_every=0"):
        stream(snapshot_every=0)
