"""A conversation with a model, without a terminal: what was said, and the cache that holds it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unspool.api import generate_stream
from unspool.cli.prompts import encoded_chat
from unspool.cli.settings import ENOUGH_TOKENS, SETTINGS, parsed
from unspool.errors import ArgumentError
from unspool.prompt_cache import PromptCache
from unspool.records import Result
from unspool.sinks import Sink, TextSink
from unspool.stream import Stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Conversation"]

Message = dict[str, str]


class Conversation:
    """What a user and a model said to each other, and the means to go on.

    What was read is held from turn to turn: of each new prompt only what isn't held is read.

    Args:
        model: The model.
        tokenizer: Its tokenizer, which has a chat template.
        system: The system message.
        settings: Settings of `GenerationConfig`, as for `generate_stream`.

    Attributes:
        messages: What was said, as chat templates take it: dicts with `role` and `content`.
        settings: The settings of the answers to come.
        history: What was typed; kept with the conversation.

    Raises:
        ArgumentError: The tokenizer has no chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ArgumentError("A chat needs a chat template, which this model's tokenizer doesn't have.")
        self.model, self.tokenizer = model, tokenizer
        self.settings: dict[str, Any] = dict(settings or {})
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.history: list[str] = []
        self._prompts = None if model.config.is_encoder_decoder else PromptCache(model)
        self._stopping = False

    def ask(self, text: str, make_sink: Callable[[], Sink] | None = None) -> Result | None:
        """Asks something, and keeps the question and the answer: also one that was stopped, or that an error ended.

        Without an answer the question is not kept, either.

        Args:
            text: What to ask.
            make_sink: Makes what takes the events of the answer.

        Returns:
            What the run came to.

        Raises:
            Exception: Whatever the run raised.
        """
        self._stopping = False
        self.messages.append({"role": "user", "content": text})
        answer, stream = io.StringIO(), None
        try:
            stream = self._stream(TextSink(answer, end=""), *([make_sink()] if make_sink else ()))
            with stream:
                for _ in stream.events():
                    if self._stopping:
                        break
        finally:
            self._keep(answer.getvalue(), None if stream is None else stream.result)
        return stream.result

    def stop(self) -> None:
        """Ends the answer that is under way when its next step is made. May be called by a signal handler."""
        self._stopping = True

    def retry(self, make_sink: Callable[[], Sink] | None = None) -> Result | None:
        """Asks the last question again. If that comes to nothing, the old answer stays.

        Raises:
            ArgumentError: Nothing was asked yet.
        """
        before = list(self.messages)
        text = self.undo()
        try:
            return self.ask(text, make_sink)
        finally:
            if len(self.messages) < len(before):
                self.messages = before

    def undo(self) -> str:
        """Takes the last question and its answer back.

        Returns:
            The question.

        Raises:
            ArgumentError: There is none.
        """
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise ArgumentError("Nothing was asked yet.")
        text = self.messages[asked[-1]]["content"]
        del self.messages[asked[-1] :]
        return text

    def clear(self) -> None:
        """Forgets everything but the system message and the settings."""
        self.messages = [message for message in self.messages if message["role"] == "system"]
        if self._prompts is not None:
            self._prompts.clear()

    def set(self, name: str, text: str) -> None:
        """Changes a setting, for the answers to come.

        Args:
            name: Its name, as in `GenerationConfig`.
            text: Its value; `none` leaves it to the model.

        Raises:
            ArgumentError: There is no such setting, or the model can't be run with it.
        """
        name = name.replace("-", "_")
        value = None if name in SETTINGS and text.lower() == "none" else parsed(name, text)
        settings = {key: given for key, given in {**self.settings, name: value}.items() if given is not None}
        self._check(settings)
        self.settings = settings

    def save(self, path: str | Path) -> None:
        """Writes the conversation to a file, as JSON.

        Raises:
            OSError: It can't be written.
        """
        kept = {"messages": self.messages, "settings": self.settings, "history": self.history}
        beside = Path(f"{path}.part")
        beside.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(beside, path)

    def load(self, path: str | Path) -> None:
        """Goes on with the conversation in a file, in place of this one.

        Raises:
            ArgumentError: It holds none.
            OSError: It can't be read.
        """
        try:
            kept = json.loads(Path(path).read_text(encoding="utf-8"))
            messages = [{"role": str(each["role"]), "content": str(each["content"])} for each in kept["messages"]]
            settings, history = dict(kept.get("settings", {})), [str(line) for line in kept.get("history", ())]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArgumentError(f"{str(path)!r} holds no conversation: {error!r}") from error
        self._check(settings)
        self.messages, self.settings, self.history = messages, settings, history

    def _check(self, settings: dict[str, Any]) -> None:
        """Lets a call with these settings check its arguments; nothing is run."""
        if settings.get("num_return_sequences", 1) != 1:
            raise ArgumentError("num_return_sequences must be 1 here: a conversation goes on from one answer.")
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        generate_stream(self.model, ids, tokenizer=self.tokenizer, **settings).close()

    def _stream(self, *sinks: Sink) -> Stream:
        """The answer to what was said so far."""
        inputs = encoded_chat(self.tokenizer, self.messages).to(self.model.device)
        settings = dict(self.settings)
        if "max_length" not in settings:
            settings.setdefault("max_new_tokens", ENOUGH_TOKENS)
        settings |= {"tokenizer": self.tokenizer, "sinks": sinks}
        if self._prompts is None:
            return generate_stream(self.model, **inputs, **settings)
        return self._prompts.stream(**inputs, **settings)

    def _keep(self, answer: str, result: Result | None) -> None:
        """Keeps an answer."""
        begun = result is not None and result.steps > 0
        if begun:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()
