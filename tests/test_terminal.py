"""What the terminal sinks leave on a screen, compared as exact text: on recorded consoles and an emulated terminal."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from tokenizers import Tokenizer, decoders, models

from terminals import Terminal
from tiny import prompt, tiny_model, tiny_tokenizer
from unspool import Finish, FinishReason, Opening, PrefillProgress, Result, Step, generate_stream
from unspool.errors import ArgumentError
from unspool.sinks import BeamSink, TerminalSink, TextSink
from unspool.sinks.rows import Flow, plain, visible


def decoded(ids):
    return tiny_tokenizer().decode(list(ids), skip_special_tokens=True)


def spelling(pieces):
    """A tokenizer whose token `n` is the n-th piece of text."""
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=None))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer, [vocab[piece] for piece in pieces]


def feed(sink, pieces, *, error=None, before=(), rows=1, probabilities=None):
    """Feeds a sink a run in which each row says the pieces."""
    tokenizer, ids = spelling(pieces)
    config = tiny_model().generation_config
    opening = Opening(torch.zeros(rows, 1, dtype=torch.int64), 1, config, tokenizer)
    sink.open(opening)
    for event in before:
        sink.take(event)
    size = max(ids) + 2
    for index, token in enumerate(ids):
        scores = torch.full((rows, size), -20.0)
        scores[:, token] = 0.0
        if probabilities:
            rest = (1 - probabilities[index]) / (size - 1)
            scores[:] = torch.tensor(rest).log()
            scores[:, token] = torch.tensor(probabilities[index]).log()
        last = index == len(ids) - 1 and error is None
        ended = {row: Finish(FinishReason.EOS, token) for row in range(rows)} if last else {}
        live = torch.ones(rows, dtype=torch.bool)
        tokens = torch.full((rows,), token)
        sink.take(Step(index, index, tokens, live, scores, scores, None, range(index, index + 1), ended))
    finish = Finish(FinishReason.EOS) if error is None else Finish(FinishReason.ERROR, error)
    sequences = torch.tensor([[0, *ids]] * rows)
    sink.close(Result(sequences, 1, (finish,) * rows, len(ids), len(ids)), error)


def shown(pieces, *, width=40, height=24, **kwargs):
    terminal = Terminal(width, height)
    options = kwargs.pop("options", {})
    feed(TerminalSink(terminal.console, **options), pieces, **kwargs)
    assert not terminal.cursor_is_hidden
    return terminal


def test_two_hundred_lines_on_a_screen_of_24_rows_are_all_there_once():
    lines = [f"line {number}" for number in range(200)]
    terminal = shown([f"{line}\n" for line in lines])
    assert [row for row in terminal.rows if row] == lines


def test_on_a_screen_20_wide_words_stay_whole():
    terminal = shown(["The ", "quick ", "brown ", "fox ", "jumps ", "over ", "the ", "lazy ", "dog"], width=20)
    assert terminal.rows == ["The quick brown fox", "jumps over the lazy", "dog"]


@pytest.mark.parametrize(
    ("pieces", "rows"),
    [
        (["你好", "世界", "再见"], ["你好世界再", "见"]),
        (["👍", "👍", " ok"], ["👍👍 ok"]),
        (["abcdefghij", "klmno"], ["abcdefghij", "klmno"]),
    ],
)
def test_wide_characters_and_long_words_break_at_the_edge(pieces, rows):
    assert shown(pieces, width=10).rows == rows


def test_text_of_the_model_is_never_markup_and_steers_no_terminal():
    terminal = shown(["[bold]", "x", "[/bold]", " \x1b[31mred", "\x07", "\rback", "\x9b2J"])
    assert terminal.rows == ["[bold]x[/bold] ␛[31mred␇␍back\\u009b2J"]


def test_what_is_written_to_a_console_is_exactly_this():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=20, height=10, legacy_windows=False, _environ={})
    feed(TerminalSink(console), ["one ", "two"])
    hide, show, erase = "\x1b[?25l", "\x1b[?25h", "\r\x1b[2K"
    assert file.getvalue() == f"{hide}one {erase}one two{erase}one two\n{show}"


def test_where_there_is_no_terminal_plain_text_is_written():
    pieces = ["[bold]", "x" * 50, "\n", "y"]
    written, expected = io.StringIO(), io.StringIO()
    feed(TerminalSink(Console(file=written, width=20)), pieces)
    feed(TextSink(expected), pieces)
    assert written.getvalue() == expected.getvalue()


def test_what_was_shown_before_an_error_stays_and_the_cursor_comes_back():
    terminal = shown(["one ", "two"], error=OSError("x"))
    assert terminal.rows == ["one two"]


def test_a_long_prompt_has_a_progress_bar_that_goes_away():
    terminal = Terminal(60, 24)
    sink = TerminalSink(terminal.console, tokenizer=tiny_tokenizer())
    ids = torch.randint(4, 100, (1, 400))
    stream = generate_stream(tiny_model(), ids, max_new_tokens=2, prefill_chunk_size=100, sinks=[sink])
    seen = []
    for event in stream.events():
        if isinstance(event, PrefillProgress):
            seen += [row.split(" ━")[0] for row in terminal.shown]
    assert seen[:4] == [f"Reading the prompt: {done} of 400 tokens" for done in (0, 100, 200, 300)]
    assert "Reading" not in "".join(terminal.rows)


def test_colours_tell_how_probable_text_was():
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system="standard", width=40, legacy_windows=False, _environ={}
    )
    feed(TerminalSink(console, probabilities=True), ["sure ", "likely ", "no"], probabilities=[0.95, 0.6, 0.05])
    final = file.getvalue().split("\x1b[2K")[-1]
    assert final == "\x1b[32msure \x1b[0m\x1b[33mlikely \x1b[0m\x1b[31mno\x1b[0m\n\x1b[?25h"


def test_alternatives_of_the_last_token_are_named_below_it():
    terminal = Terminal(60, 24)
    sink = TerminalSink(terminal.console, tokenizer=tiny_tokenizer(), alternatives=2)
    stream = generate_stream(tiny_model(), **prompt(1), max_new_tokens=3, sinks=[sink])
    step = next(stream)
    best = step.scores[0].softmax(-1).topk(2)
    names = [tiny_tokenizer().decode([token]) for token in best.indices]
    assert all(name in terminal.shown[-1] for name in names)
    stream.to()
    assert len(terminal.rows) == 1


def test_pace_is_told_by_the_clock():
    now = [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    terminal = shown(["a ", "b ", "c"], options={"stats": True, "clock": clock})
    assert terminal.rows[0] == "a b c"
    assert "3 tokens" in terminal.rows[1]


def test_rows_of_a_batch_have_panels_that_stay():
    terminal = Terminal(40, 24)
    sink = TerminalSink(terminal.console, tokenizer=tiny_tokenizer())
    result = generate_stream(tiny_model(), **prompt(2), max_new_tokens=4, eos_token_id=None).to(sink)
    texts = [decoded(ids) for ids in result.tokens]
    assert [row for row in terminal.rows if not row.startswith(("╭", "╰"))] == [f"│ {text:36} │" for text in texts]
    assert [row[3:11] for row in terminal.rows if row.startswith("╭")] == ["prompt 0", "prompt 1"]


@pytest.mark.parametrize("rows", [3, 30])
def test_what_is_drawn_anew_is_never_taller_than_the_screen(rows):
    terminal = Terminal(30, 10)
    sink = TerminalSink(terminal.console, tokenizer=tiny_tokenizer())
    stream = generate_stream(tiny_model(), **prompt(rows), max_new_tokens=20, eos_token_id=None, sinks=[sink])
    for _ in range(19):
        next(stream)
        assert not terminal.scrolled
    result = stream.to()
    words = " ".join(row.strip("│ ") for row in terminal.rows if row.startswith("│")).split()
    assert words == [w for ids in result.tokens for w in decoded(ids).split()]


# -------------------------------------------------------------------------------------------------- beams


def beam_run(terminal, rows=1, **asked):
    sink = BeamSink(terminal.console, tokenizer=tiny_tokenizer())
    return generate_stream(tiny_model(), **prompt(rows), sinks=[sink], **asked)


@pytest.mark.parametrize("beams", [2, 8])
def test_beams_are_shown_from_where_they_part_and_the_end_is_the_returned_text(beams):
    terminal = Terminal(60, 24)
    stream = beam_run(terminal, num_beams=beams, max_new_tokens=12)
    length = prompt()["input_ids"].shape[1]
    for step in stream:
        if not step.ended:
            agreed = decoded(step.beams.agreed[0][length:])
            assert terminal.rows[0] == agreed
            assert len([row for row in terminal.rows[1:] if row]) == beams + int(
                step.beams.finished_lengths.gt(0).sum()
            )
    assert not terminal.cursor_is_hidden
    assert terminal.rows == [decoded(stream.result.tokens[0])]


def test_beams_of_several_prompts_have_a_panel_each():
    terminal = Terminal(60, 24)
    result = beam_run(terminal, rows=2, num_beams=3, max_new_tokens=6).to()
    texts = [decoded(ids) for ids in result.tokens]
    assert [row for row in terminal.rows if not row.startswith(("╭", "╰"))] == [f"│ {text:56} │" for text in texts]


def test_eight_beams_of_three_prompts_fit_a_screen():
    terminal = Terminal(60, 24)
    for step in beam_run(terminal, rows=3, num_beams=8, max_new_tokens=9):
        if not step.ended:
            assert len(terminal.rows) <= 24
            assert not terminal.scrolled


def test_beams_without_a_terminal_are_the_agreed_text():
    written, expected = io.StringIO(), io.StringIO()
    for sink in (BeamSink(Console(file=written)), TextSink(expected)):
        asked = dict(num_beams=3, max_new_tokens=8, tokenizer=tiny_tokenizer())
        generate_stream(tiny_model(), **prompt(), **asked).to(sink)
    assert written.getvalue() == expected.getvalue()


def test_a_beam_sink_without_beams_is_refused():
    with pytest.raises(ArgumentError, match="num_beams"):
        generate_stream(tiny_model(), **prompt(), max_new_tokens=2, tokenizer=tiny_tokenizer()).to(BeamSink())


@pytest.mark.parametrize("sink", [TerminalSink, BeamSink])
def test_a_terminal_sink_without_a_tokenizer_is_refused(sink):
    with pytest.raises(ArgumentError, match="tokenizer"):
        generate_stream(tiny_model(), **prompt(), num_beams=2, max_new_tokens=2).to(sink(Terminal().console))


@pytest.mark.parametrize("wrong", [-1, 1.5, True])
def test_a_number_of_alternatives_that_is_none_is_refused(wrong):
    with pytest.raises(ArgumentError, match="alternatives"):
        TerminalSink(alternatives=wrong)


# --------------------------------------------------------------------------------------------------- rows

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.lists(TEXT, max_size=6), st.integers(2, 30))
@settings(max_examples=60)
def test_rows_are_never_wider_than_the_screen_and_hold_the_whole_text(pieces, width):
    flow = Flow(width)
    rows = [row for piece in pieces for row in flow.add(piece)] + [flow.open]
    assert all(cell_len(plain(row)) <= width for row in rows)
    joined = "".join(map(plain, rows))
    assert "".join(joined.split()) == "".join(visible("".join(pieces)).split())


@given(TEXT, st.integers(2, 30), st.integers(1, 7))
@settings(max_examples=60)
def test_rows_do_not_depend_on_the_pieces_that_text_comes_in(text, width, size):
    def rows(parts):
        flow = Flow(width)
        return [plain(row) for part in parts for row in flow.add(part)] + [plain(flow.open)]

    assert rows([text[i : i + size] for i in range(0, len(text), size)]) == rows([text] if text else [])
