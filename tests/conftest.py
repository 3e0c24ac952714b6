"""Fixtures that all tests share."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
import transformers

from tiny import tiny_model

torch.set_num_threads(1)  # for models this small, more threads only wait for each other
transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def random_state():
    """Each test draws the same numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def llama():
    """A tiny Llama of the test's own."""
    return tiny_model("llama")
