"""`unspool chat`: turns that read only what is new, answers that can be stopped, and a conversation that is kept."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from typer.testing import CliRunner

from tiny import tiny_model, tiny_tokenizer
from unspool import generate
from unspool.cli import app, chatting
from unspool.cli.conversation import Conversation
from unspool.errors import ArgumentError

TEMPLATE = "{% for message in messages %}{{ message['content'] }} w9 {% endfor %}"
TURNS = ["w5 w6", "w7", "w8 w10 w11", "w12"]


def talking(name="llama", **kwargs):
    tokenizer = copy.copy(tiny_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return Conversation(tiny_model(name), tokenizer, **{"settings": {"max_new_tokens": 5}, **kwargs})


@contextlib.contextmanager
def widths(model):
    """How many positions each forward reads."""
    found = []

    def note(module, args, kwargs):
        found.append(kwargs["input_ids"].shape[1])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def from_scratch(conversation, upto):
    """The answer to the first messages, without a cache from before."""
    inputs = conversation.tokenizer.apply_chat_template(
        conversation.messages[:upto], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = generate(conversation.model, **inputs, max_new_tokens=5)
    new = ids[0, inputs["input_ids"].shape[1] :]
    return conversation.tokenizer.decode(new, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mistral", "mamba"])
def test_every_answer_is_what_it_is_without_the_cache(name):
    conversation = talking(name)
    for text in TURNS:
        conversation.ask(text)
    assert len(conversation.messages) == 2 * len(TURNS)
    for turn in range(len(TURNS)):
        assert conversation.messages[2 * turn + 1]["content"] == from_scratch(conversation, 2 * turn + 1)


def test_a_turn_reads_only_what_the_cache_does_not_hold():
    conversation = talking()
    held = 0
    with widths(conversation.model) as read:
        for text in TURNS:
            read.clear()
            conversation.ask(text)
            asked = conversation.tokenizer.apply_chat_template(conversation.messages[:-1], return_dict=True)
            assert read[0] <= len(asked["input_ids"]) - held
            assert all(width == 1 for width in read[1:])
            held = len(asked["input_ids"])  # and the answer, but for what the template makes of its end


def test_an_answer_that_is_stopped_is_kept_and_gone_on_from():
    conversation = talking(settings={"max_new_tokens": 50})

    class Stop:
        def open(self, opening):
            pass

        def take(self, event):
            if getattr(event, "index", 0) == 2:
                conversation.stop()

        def close(self, result, error):
            pass

    result = conversation.ask("w5 w6", Stop)
    assert result.steps == 3
    assert conversation.messages[-1]["role"] == "assistant"
    conversation.settings = {"max_new_tokens": 5}
    conversation.ask("w7")
    assert conversation.messages[-1]["content"] == from_scratch(conversation, 3)


def test_a_question_that_comes_to_no_answer_is_not_kept():
    conversation = talking()
    conversation.model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        conversation.ask("w5")
    assert conversation.messages == []


def test_undo_and_retry_take_back_a_turn():
    conversation = talking(system="w4")
    for text in TURNS[:2]:
        conversation.ask(text)
    answer = conversation.messages[-1]["content"]
    conversation.retry()
    assert conversation.messages[-1]["content"] == answer
    assert conversation.undo() == TURNS[1]
    assert len(conversation.messages) == 3
    conversation.clear()
    assert conversation.messages == [{"role": "system", "content": "w4"}]
    with pytest.raises(ArgumentError, match="Nothing was asked"):
        conversation.undo()


def test_a_conversation_is_saved_and_gone_on_with(tmp_path):
    conversation, file = talking(), tmp_path / "talk.json"
    conversation.ask(TURNS[0])
    conversation.history.append(TURNS[0])
    conversation.save(file)
    again = talking(settings={})
    again.load(file)
    assert (again.messages, again.settings, again.history) == (
        conversation.messages,
        conversation.settings,
        conversation.history,
    )
    for one in (conversation, again):
        one.ask(TURNS[1])
    assert again.messages == conversation.messages


@pytest.mark.parametrize("content", ["", "[]", '{"messages": [{"role": "user"}]}', '{"messages": 3}'])
def test_a_file_that_holds_no_conversation_is_refused_and_changes_nothing(tmp_path, content):
    conversation, file = talking(), tmp_path / "talk.json"
    conversation.ask(TURNS[0])
    before = list(conversation.messages)
    file.write_text(content)
    with pytest.raises(ArgumentError, match="no conversation"):
        conversation.load(file)
    assert conversation.messages == before


def test_settings_are_checked_when_they_are_set():
    conversation = talking()
    conversation.set("temperature", "0.5")
    conversation.set("do-sample", "true")
    assert conversation.settings == {"max_new_tokens": 5, "temperature": 0.5, "do_sample": True}
    conversation.set("temperature", "none")
    for name, value in (("temprature", "1"), ("max_new_tokens", "-1"), ("num_return_sequences", "2")):
        with pytest.raises(ArgumentError):
            conversation.set(name, value)
    assert conversation.settings == {"max_new_tokens": 5, "do_sample": True}


def test_a_model_without_a_chat_template_is_refused():
    with pytest.raises(ArgumentError, match="chat template"):
        Conversation(tiny_model(), tiny_tokenizer())


def test_lines_of_a_pipe_are_turns_and_commands(monkeypatch, tmp_path):
    conversation = talking()
    loaded = (conversation.model, conversation.tokenizer)
    monkeypatch.setattr(chatting, "load_model", lambda *_, **__: loaded)
    file = tmp_path / "talk.json"
    lines = ["w5 w6", "/nonsense", "/set temperature x", "w7", "/undo", f"/save {file}", "/quit", "w8"]
    run = CliRunner().invoke(app, ["chat", "--max-new-tokens", "5"], input="\n".join(lines) + "\n")
    assert run.exit_code == 0
    conversation.ask("w5 w6")
    first = conversation.messages[-1]["content"]
    assert run.stdout.splitlines()[0] == first
    assert "There is no /nonsense" in run.stderr
    assert "temperature" in run.stderr
    assert "Taken back: w7" in run.stderr
    kept = json.loads(file.read_text())
    assert kept["messages"] == conversation.messages
    assert kept["history"] == lines[:6]
