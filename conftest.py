"""What the examples in docstrings may use without importing it."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def names_in_examples(doctest_namespace):
    import torch

    from tiny import tiny_model, tiny_tokenizer

    doctest_namespace |= {"tiny_model": tiny_model, "tiny_tokenizer": tiny_tokenizer, "torch": torch}
