"""Any sequence of commands: what the stream then says is what a run says that was only ever given those that hold."""

from __future__ import annotations

import contextlib
import tempfile

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import Finish, FinishReason, Step, generate_stream, resume
from unspool.errors import StreamError
from unspool.text import TextStream

KINDS = [
    (name, method)
    for name in ("llama", "t5", "mistral", "mamba")
    for method in ("greedy", "sample", "beams", "beam_sample", "drafts")
    if method != "drafts" or name == "llama"
]
METHODS = {
    "greedy": {},
    "sample": dict(do_sample=True, seed=3),
    "beams": dict(num_beams=3),
    "beam_sample": dict(num_beams=2, do_sample=True, seed=3),
    "drafts": dict(prompt_lookup_num_tokens=2),
}
TOKENS = st.integers(5, 150)


class Commands(RuleBasedStateMachine):
    """Beside the stream, keeps what was commanded at which step; a rewind undoes what was commanded since."""

    @initialize(kind=st.sampled_from(KINDS), rows=st.sampled_from([1, 2]), seed=st.integers(0, 5))
    def begin(self, kind, rows, seed):
        self.name, self.method = kind
        rows = 1 if self.method == "drafts" else rows
        self.ids = prompt(rows, 6, ragged=rows > 1 and self.name != "mamba", seed=seed)
        self.beams = "beam" in self.method
        self.held = []  # (step, command, arguments)
        self.at = self.base = self.fixed = 0
        self.follow(self.fresh(snapshot_every=3))

    def fresh(self, **more):
        return generate_stream(
            tiny_model(self.name),
            **self.ids,
            **METHODS[self.method],
            max_new_tokens=12,
            eos_token_id=None,
            pad_token_id=0,
            repetition_penalty=1.2,
            stop_strings=["w7 w", "w33"],
            tokenizer=tiny_tokenizer(),
            **more,
        )

    def follow(self, stream, said=()):
        self.stream, self.events = stream, stream.events()
        self.steps, self.over = list(said), False
        self.text = self.shown = None

    def note(self, event):
        if isinstance(event, Step):
            self.steps.append(event)
        elif type(event).__name__ == "Retract":
            del self.steps[event.index :]
        if self.text is None and self.stream._source.opening() is not None:
            self.text = TextStream(self.stream._source.opening(), tiny_tokenizer(), logprobs=False)
            self.shown = self.shown or [""] * len(self.text.rows)
        for chunk in [] if self.text is None else self.text.take(event):
            row = self.shown[chunk.row]
            self.shown[chunk.row] = row[: len(row) - chunk.back] + chunk.text

    def command(self, name, *given, **settings):
        try:
            getattr(self.stream, name)(*given, **settings)
        except StreamError:
            assert self.beams  # what was left of the search was over when its last other prompt was stopped
            self.over = True
        else:
            self.held.append((self.at, name, given, settings))

    @property
    def live(self):
        count = self.ids["input_ids"].shape[0]
        gone = {given[0] for _, name, given, _ in self.held if name == "stop"}
        if not self.beams:
            gone |= {row for step in self.steps for row in step.ended}
        elif self.steps and self.steps[-1].ended:
            gone = set(range(count))
        return [row for row in range(count) if row not in gone and not self.over]

    @rule(count=st.integers(1, 4))
    def go_on(self, count):
        while count and not self.over and self.live:
            event = next(self.events, None)
            if event is None:  # the same
                self.over = True
                break
            self.note(event)
            count -= isinstance(event, Step)
            self.at = len(self.steps)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=2))
    def force(self, data, tokens):
        self.command("force", tokens, data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule(penalty=st.sampled_from([1.0, 1.5, 3.0]), data=st.data())
    def update(self, penalty, data):
        rows = None if self.beams else data.draw(st.sampled_from([None, *self.live]))
        self.command("update", rows, repetition_penalty=penalty)

    @precondition(lambda self: len(self.live) > 1)
    @rule(data=st.data())
    def stop(self, data):
        row = data.draw(st.sampled_from(self.live))
        self.command("stop", row)

    @precondition(lambda self: self.at > self.base and not self.over)
    @rule(data=st.data())
    def rewind(self, data):
        back = data.draw(st.integers(1, self.at - self.base))
        self.stream.rewind(back)
        self.at -= back
        self.held = self.held[: self.fixed] + [it for it in self.held[self.fixed :] if it[0] < self.at]
        while len(self.steps) != self.at:
            self.note(next(self.events))

    @precondition(lambda self: self.live and not self.beams)
    @rule(seeded=st.booleans())
    def fork(self, seeded):
        [branch] = self.stream.fork()
        next(branch)  # goes its own way
        [branch] = self.stream.fork()
        self.go_over_to(branch)

    @precondition(lambda self: self.live and not self.beams)
    @rule()
    def save_and_resume(self):
        with tempfile.TemporaryDirectory() as folder:
            self.stream.save(f"{folder}/stream")
            again = resume(tiny_model(self.name), f"{folder}/stream", tokenizer=tiny_tokenizer(), snapshot_every=3)
        self.go_over_to(again)

    def go_over_to(self, stream):
        for event in [] if self.text is None else list(self.stream._told):
            self.note(event)
        shown, before = self.shown, self.steps
        self.base, self.fixed = self.at, len(self.held)
        self.stream.close()
        self.follow(stream, before)
        self.shown = shown

    def teardown(self):
        if not hasattr(self, "stream"):
            return
        while self.live:
            try:
                self.note(next(self.events))
            except StopIteration:
                break
        other = self.fresh()
        steps = []
        for at in range(13):
            for _, name, given, changed in [it for it in self.held if it[0] == at]:
                getattr(other, name)(*given, **changed)
            with contextlib.suppress(StopIteration):
                steps.append(next(other))
        assert [step.tokens.tolist() for step in self.steps] == [step.tokens.tolist() for step in steps]
        assert [dict(step.ended) for step in self.steps] == [dict(step.ended) for step in steps]
        for mine, its in zip(self.steps, steps, strict=True):
            assert torch.allclose(mine.logits, its.logits, atol=1e-4)
        if self.text is not None:
            assert self.said(self.text, self.shown) == self.said_by(other, steps)

    def said(self, text, shown):
        ended = Finish(FinishReason.STOPPED)
        last = {chunk.row: chunk.text for chunk in text.finish(None, ended)}
        return [begun + last.get(row, "") for row, begun in enumerate(shown)]

    def said_by(self, other, steps):
        text = TextStream(other._source.opening(), tiny_tokenizer(), logprobs=False)
        shown = [""] * len(text.rows)
        for chunk in (chunk for step in steps for chunk in text.take(step)):
            shown[chunk.row] += chunk.text
        return self.said(text, shown)


def run(examples):
    run_state_machine_as_test(
        Commands,
        settings=settings(
            max_examples=examples,
            stateful_step_count=10,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            database=None,
        ),
    )


def test_after_any_commands_a_run_is_what_it_would_have_been():
    run(50)


@pytest.mark.slow
def test_after_any_of_many_more_commands_a_run_is_what_it_would_have_been():
    run(500)
