"""From what was typed to the ids that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unspool.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

__all__ = ["encoded", "encoded_chat"]


def encoded(tokenizer: PreTrainedTokenizerBase, prompt: str, *, chat: bool | None, system: str | None) -> BatchEncoding:
    """The ids of a prompt, as a message of a chat or as it is.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The text.
        chat: Whether it is a message; None: if the model has a chat template.
        system: The system message before it.

    Raises:
        ArgumentError: There is no chat template, and one is needed.
    """
    able = bool(tokenizer.chat_template)
    if (chat or system) and not able:
        raise ArgumentError(
            f"{'--chat' if chat else '--system'} needs a chat template, which this model's tokenizer doesn't have."
        )
    if chat is False or not able:
        if system:
            raise ArgumentError("--system is a message of a chat; leave out --no-chat.")
        return tokenizer(prompt, return_tensors="pt")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    return encoded_chat(tokenizer, messages)


def encoded_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> BatchEncoding:
    """The ids of a chat, up to where the model is to answer."""
    made: BatchEncoding = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return made
