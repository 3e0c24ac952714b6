"""The private names of transformers: each is where it is expected, and only one module touches them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from transformers import GenerationMixin, WhisperForConditionalGeneration

import unspool
from unspool import bridge

SOURCE = Path(unspool.__file__).parent


@pytest.mark.parametrize("hook", bridge.HOOKS)
def test_transformers_has_the_hook(hook):
    assert callable(getattr(GenerationMixin, hook, None)), f"transformers has no GenerationMixin.{hook} any more"


@pytest.mark.parametrize("name", bridge.WHISPER)
def test_whisper_has_the_method(name):
    assert callable(getattr(WhisperForConditionalGeneration, name, None)), f"Whisper has no {name} any more"


def test_the_cache_has_the_name_that_models_take_it_by():
    assert bridge.CACHE in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters


def private_names(path):
    """Attributes with a leading underscore of anything but `self`, `cls` and what the module itself defines."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {name.attr for name in ast.walk(tree) if isinstance(name, ast.Attribute) and _is(name.value, "self", "made")}
    for node in ast.walk(tree):
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if private and not _is(node.value, "self", "cls") and node.attr not in own:
            yield node.attr


def _is(node, *names):
    return isinstance(node, ast.Name) and node.id in names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_bridge_touches_private_names(path):
    if path.name != "bridge.py":
        assert not set(private_names(path)) - {"_fields", "_dynamo", "_register_atexit"}  # not transformers'
