"""From tokens to text, one token at a time.

A tokenizer's `decode` wants all ids at once; asking it anew at every step would be slow and, since its text is
not always a prefix of what comes next, wrong. A detokenizer takes one id and gives the text that is now certain.
It does constant work for each token.
"""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Callable
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from unspool.errors import ArgumentError

__all__ = ["Detokenizer", "detokenizer_for", "plain_tokenizer"]

_CONTEXT = 6  # ids before a token that its text may hang on
_PATIENCE = 16  # ids; the longest that a text ending in U+FFFD is waited for
_EACH_BYTE = "unspool.each_byte"


class Detokenizer(Protocol):
    """Turns the ids of one sequence into text."""

    def push(self, token: int) -> str:
        """The text that is certain now that this token has come; maybe none."""

    def flush(self) -> str:
        """What remains at the end: U+FFFD for the bytes of a character that never was completed."""

    def copy(self) -> Detokenizer:
        """One more that goes on from here by itself."""


def plain_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer itself, or that of a processor.

    Raises:
        ArgumentError: It is neither.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    if isinstance(inner, Tokenizer) or callable(getattr(inner, "decode", None)):
        return inner
    raise ArgumentError(
        f"tokenizer is a {type(tokenizer).__name__}; a tokenizer of transformers, a processor with one, or a "
        f"tokenizers.Tokenizer would do."
    )


def detokenizer_for(tokenizer: Any, *, skip_special_tokens: bool = True) -> Callable[[], Detokenizer]:
    """What makes detokenizers for a tokenizer, one for each row.

    Args:
        tokenizer: A tokenizer of transformers, a processor that has one, or a `tokenizers.Tokenizer`.
        skip_special_tokens: Whether special tokens have no text.

    Raises:
        ArgumentError: It is none of these.
    """
    tokenizer = plain_tokenizer(tokenizer)
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return functools.partial(WindowDetokenizer, _decode_of(tokenizer, skip_special_tokens))
    special = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}
    skipped = frozenset(special if skip_special_tokens else ())
    kinds = _decoder_kinds(backend)
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return functools.partial(ByteDetokenizer, _Pieces(backend), skipped)
    if "ByteLevel" in kinds:  # what else is done to the text, only the whole decoder knows
        return functools.partial(WindowDetokenizer, _decode_of(backend, skip_special_tokens))
    pieces = _Pieces(backend) if "ByteFallback" in kinds else None
    return functools.partial(StreamDetokenizer, backend, skipped, pieces)


class ByteDetokenizer:
    """For byte-level tokenizers, whose tokens are runs of bytes: a character comes with its last byte.

    Args:
        pieces: The bytes of each token.
        skipped: Ids without text.
    """

    def __init__(self, pieces: _Pieces, skipped: frozenset[int]) -> None:
        self._pieces, self._skipped = pieces, skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are complete with this token."""
        return "" if token in self._skipped else self._utf8.decode(self._pieces.level(token))

    def flush(self) -> str:
        """U+FFFD for an incomplete character, as the tokenizer's own `decode` shows it."""
        return self._utf8.decode(b"", final=True)

    def copy(self) -> ByteDetokenizer:
        """One more that goes on from here by itself."""
        made = ByteDetokenizer(self._pieces, self._skipped)
        made._utf8.setstate(self._utf8.getstate())
        return made


class StreamDetokenizer:
    """For all other tokenizers with a backend, over the `DecodeStream` of tokenizers.

    Tokens that stand for single bytes don't go through it: decoding them together is not stable, as the bytes of
    a finished character turn back into U+FFFD when the first byte of the next arrives. They are put together here.

    Args:
        backend: The tokenizer.
        skipped: Ids without text.
        pieces: The bytes that tokens stand for, if some stand for single bytes.
    """

    def __init__(self, backend: Tokenizer, skipped: frozenset[int], pieces: _Pieces | None) -> None:
        self._backend, self._skipped, self._pieces = backend, skipped, pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(_EACH_BYTE)
        self._context: list[int] = []
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=False)

    def push(self, token: int) -> str:
        """The text that is certain now."""
        if token in self._skipped or _token_of(self._backend, token) is None:
            return ""
        byte = None if self._pieces is None else self._pieces.fallback(token)
        if byte is None:
            return self._utf8_rest() + self._step(token)
        if not self._context:  # what comes next is no longer the beginning of the text
            self._prime([token])
        return self._utf8.decode(byte)

    def flush(self) -> str:
        """U+FFFD for an incomplete character."""
        return self._utf8_rest()

    def copy(self) -> StreamDetokenizer:
        """One more that goes on from here by itself."""
        made = StreamDetokenizer(self._backend, self._skipped, self._pieces)
        made._utf8.setstate(self._utf8.getstate())
        made._context = list(self._context)
        made._stream = None if self._context else DecodeStream(skip_special_tokens=False)
        return made

    def _step(self, token: int) -> str:
        text = None
        if self._stream is not None:
            try:
                text = self._stream.step(self._backend, token)
            except Exception:  # the text of a token changed that of the one before: only the window tells
                text = None
        if text is not None:
            self._context = [*self._context, token][-_CONTEXT:]
            return text
        # No text, or a true U+FFFD at the end, for which the stream would wait: the window until that has passed.
        text = self._in_window(token)
        self._context = [*self._context, token][-_CONTEXT:]
        self._stream = None
        if text and not text.endswith("\ufffd"):
            self._prime([token])
        return text

    def _in_window(self, token: int) -> str:
        before = self._backend.decode(self._context, skip_special_tokens=False)
        after = self._backend.decode([*self._context, token], skip_special_tokens=False)
        return after[len(before) :] if after.startswith(before) else self._backend.decode([token])

    def _prime(self, context: list[int]) -> None:
        self._context = context[-_CONTEXT:]
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=False)

    def _utf8_rest(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class WindowDetokenizer:
    """For tokenizers whose decoding is a matter of their own: decodes the last few ids anew for each.

    Args:
        decode: Gives the text of some ids.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The text that is certain now: nothing while it ends in what may be half a character."""
        self._pending.append(token)
        text = self._new_text()
        if text.endswith("\ufffd") and len(self._pending) < _PATIENCE:
            return ""
        self._settle()
        return text

    def flush(self) -> str:
        """The text that was waited for."""
        text = self._new_text() if self._pending else ""
        self._settle()
        return text

    def copy(self) -> WindowDetokenizer:
        """One more that goes on from here by itself."""
        made = WindowDetokenizer(self._decode)
        made._context, made._pending = list(self._context), list(self._pending)
        return made

    def _new_text(self) -> str:
        before, after = self._decode(self._context), self._decode([*self._context, *self._pending])
        return after[len(before) :] if after.startswith(before) else self._decode(self._pending)

    def _settle(self) -> None:
        self._context, self._pending = [*self._context, *self._pending][-_CONTEXT:], []


class _Pieces:
    """The bytes that the tokens of a tokenizer stand for; each is looked up once."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._level: dict[int, bytes] = {}

    def level(self, token: int) -> bytes:
        """The bytes of a byte-level token; none for an id that is not in the vocabulary."""
        found = self._level.get(token)
        if found is None:
            text = _token_of(self._backend, token) or ""
            table = _byte_of_character()
            known = all(character in table for character in text)
            found = bytes(table[character] for character in text) if known else text.encode()
            self._level[token] = found
        return found

    def fallback(self, token: int) -> bytes | None:
        """The byte that a token such as `<0xE6>` stands for; None for all others."""
        text = self._backend.id_to_token(token)
        if text is None or len(text) != 6 or not (text.startswith("<0x") and text.endswith(">")):
            return None
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return None


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for each byte that is in no character, as byte fallback shows it."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _each_byte)


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves; the others are moved, in order, to the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


def _decoder_kinds(backend: Tokenizer) -> set[str]:
    """The kinds of decoders that a tokenizer uses, those within sequences too."""
    waiting = [] if backend.decoder is None else [json.loads(backend.decoder.__getstate__())]
    kinds = set()
    while waiting:
        part = waiting.pop()
        waiting.extend(part.get("decoders", ()))
        kinds.add(part.get("type", ""))
    return kinds - {"Sequence"}


def _token_of(backend: Tokenizer, token: int) -> str | None:
    """The token of an id; None for ids that the tokenizer does not know, as padded vocabularies have them."""
    return backend.id_to_token(token) if 0 <= token < 1 << 32 else None


def _decode_of(tokenizer: Any, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """How a tokenizer decodes the ids it knows."""
    known = _knows(tokenizer)
    settings = {} if isinstance(tokenizer, Tokenizer) else {"clean_up_tokenization_spaces": False}

    def decode(ids: list[int]) -> str:
        asked = [token for token in ids if known(token)]
        text: str = tokenizer.decode(asked, skip_special_tokens=skip_special_tokens, **settings)
        return text

    return decode


def _knows(tokenizer: Any) -> Callable[[int], bool]:
    if isinstance(tokenizer, Tokenizer):
        return lambda token: _token_of(tokenizer, token) is not None

    @functools.lru_cache(maxsize=1 << 16)
    def known(token: int) -> bool:
        if token < 0:
            return False
        try:
            tokenizer.decode([token])
        except (LookupError, OverflowError, TypeError, ValueError):
            return False
        return True

    return known
