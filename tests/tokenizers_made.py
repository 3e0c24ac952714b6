"""Tokenizers of every kind of decoder, made offline."""

from __future__ import annotations

import functools

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the cat sat on the mat, and the dog ran",
    "stop the stopping stops now",
    "naïve café 歪你好世界 😀👍🏽 e\u0301",
]


@functools.cache
def byte_level() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2's and SmolLM2's: every byte is a token, and some pieces of words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@functools.cache
def byte_fallback() -> transformers.PreTrainedTokenizerFast:
    """SentencePiece-like BPE with byte fallback, as Llama's: what is not in the vocabulary becomes `<0xNN>` tokens."""
    letters = sorted(set("".join(CORPUS[:2]).replace(" ", "▁")))
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "\ufffd", "歪"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("s", "t"), ("st", "o"), ("sto", "p")]
    words += ["".join(pair) for pair in merges]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<unk>", "<s>", "</s>")])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@functools.cache
def word_piece() -> transformers.PreTrainedTokenizerFast:
    """WordPiece, as BERT's: pieces within a word begin with `##`."""
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "the",
        "cat",
        "sat",
        "mat",
        "stop",
        "##ping",
        "##s",
        "##ed",
        ",",
        ".",
        "now",
        "a",
    ]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def _over_bytes(decoder: decoders.Decoder) -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level().backend_tokenizer.to_str())
    tokenizer.decoder = decoder
    return tokenizer


def nested_byte_level() -> Tokenizer:
    """A byte-level decoder two sequences deep."""
    return _over_bytes(decoders.Sequence([decoders.Sequence([decoders.ByteLevel()]), decoders.Fuse()]))


def mixed_byte_level() -> Tokenizer:
    """A byte-level decoder after another that changes tokens."""
    return _over_bytes(decoders.Sequence([decoders.Replace("the", "THE"), decoders.ByteLevel()]))


def joined() -> Tokenizer:
    """A decoder that puts tokens together as they are."""
    tokenizer = Tokenizer(models.WordLevel({"Ġ": 0, "é": 1, "Ġé": 2}, unk_token="Ġ"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Slow:
    """A tokenizer with no backend: characters, and `decode`."""

    def __init__(self) -> None:
        self.widest = 0

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        """Ids are UTF-8 bytes; 0 is special, and others raise."""
        self.widest = max(self.widest, len(ids))
        kept = [i for i in ids if i or not skip_special_tokens]
        return bytes(kept).decode("utf-8", errors="replace")
