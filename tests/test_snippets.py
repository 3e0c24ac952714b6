"""Every Python block of the documentation runs, and prints what the page says it prints.

The blocks of one page share a namespace that holds a `model` and its `tokenizer`. A block of plain text that follows
one directly is what it prints. Where a block loads SmolLM2 by its hub id, it gets the copy that is installed.
"""

import re
from pathlib import Path

import pytest
import transformers

from smollm2 import INSTALLED, smollm2_or_tiny

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FRACTION = re.compile(r"-?\d+\.\d+")


def blocks(page):
    """The page's Python blocks: line number, code and, if it is given, output."""
    text = page.read_text()
    return [(text[: m.start()].count("\n") + 1, m["code"], m["output"]) for m in BLOCK.finditer(text)]


def fractions(text):
    """The numbers with a fraction; their last digit is another on another processor."""
    return [float(number) for number in FRACTION.findall(text)]


def without_fractions(text):
    return FRACTION.sub("#", text).rstrip("\n")


@pytest.fixture
def namespace(monkeypatch):
    model, tokenizer = smollm2_or_tiny()
    for auto, loaded in (("AutoModelForCausalLM", model), ("AutoTokenizer", tokenizer)):
        monkeypatch.setattr(getattr(transformers, auto), "from_pretrained", lambda name, loaded=loaded: loaded)
    return {"__name__": "snippet", "model": model, "tokenizer": tokenizer}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_snippets_of_a_page_run(page, namespace, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line, code, output in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        if output is not None and INSTALLED:
            assert without_fractions(printed) == without_fractions(output), f"{page.name}, line {line}"
            assert fractions(printed) == pytest.approx(fractions(output), abs=0.011), f"{page.name}, line {line}"


def test_no_block_hides_from_the_tests():
    """Every fence that says Python is found by the pattern above, indented or not."""
    for page in PAGES:
        fences = re.findall(r"^\s*(?:```|~~~)\s*\{?\.?(?:python|py|python3|pycon)\b", page.read_text(), re.MULTILINE)
        assert len(fences) == len(blocks(page)), page.name


def test_there_are_snippets():
    assert sum(len(blocks(page)) for page in PAGES) > 10
