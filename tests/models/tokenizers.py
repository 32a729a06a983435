"""Small tokenizers of each family, trained with the `tokenizers` library on mixed text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXT = """\
The quick brown fox jumps over the lazy dog; it's 2024, they'll pay $1,234.56 -- and WE'VE won!
def main(argv: list[str]) -> int:\n    return {"key": [1, 2, 3]}.get(argv[0], 0)  # a comment
Größe, naïve café, Ελληνικά, Русский текст, 日本語のテキスト, 한국어, العربية, हिन्दी, ไทย, 中文字符
😀 👩‍👩‍👧 🇩🇪 ½ ² ٣ Ⅷ \t\ttabs\r\nand   spaces\u00a0\u3000 e\u0301 ﬁ \u2581
"""


def _special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **flags)


def _train(tokenizer: Tokenizer, special: list[str], size: int = 480) -> Tokenizer:
    bytes_ = pre_tokenizers.ByteLevel.alphabet() if tokenizer.model.byte_fallback is False else []
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=bytes_, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, TEXT.lower(), TEXT.replace(" ", "  ")], trainer)
    return tokenizer


def _byte_level(pattern: str | None, **model: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return _train(tokenizer, ["<|begin|>", "<|end|>"])


def gpt2() -> Tokenizer:
    tokenizer = _byte_level(None)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens([AddedToken("wörd", single_word=True), AddedToken("<mask>", lstrip=True)])
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = _byte_level(LLAMA3, ignore_merges=True)
    begin = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 0)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), begin])
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = _byte_level(QWEN2)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([_special("<|im_start|>", rstrip=True), _special("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def gpt4o() -> Tokenizer:
    return _byte_level(GPT4O)


def deepseek() -> Tokenizer:
    tokenizer = _byte_level(DEEPSEEK)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex(r"[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
            pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def starcoder() -> Tokenizer:
    tokenizer = _byte_level(None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def _sentence_pieces(**model: Any) -> Tokenizer:
    """Byte tokens first, as SentencePiece has them, then what training finds."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, **model))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = _train(trained, special, 620)
    data = json.loads(trained.to_str())
    # The byte tokens belong to the model; what is no byte of theirs keeps three special tokens.
    data["added_tokens"] = data["added_tokens"][:3]
    drop = [each for each in data["model"]["vocab"] if len(each) == 1 and ord(each) > 0x1000]
    merged = {part for pair in data["model"]["merges"] for part in pair}
    for each in drop:
        if each not in merged and each != "▁":
            del data["model"]["vocab"][each]
    order = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    data["model"]["vocab"] = {each: number for number, each in enumerate(order)}
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    tokenizer = _sentence_pieces(fuse_unk=True)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def mistral() -> Tokenizer:
    tokenizer = _sentence_pieces()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = llama2().decoder
    tokenizer.add_special_tokens([_special("[INST]"), _special("[/INST]", lstrip=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = _sentence_pieces(fuse_unk=True)
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_tokens([AddedToken("normal ﬁnd", normalized=True)])
    return tokenizer


def unknown() -> Tokenizer:
    """Characters without a token and no bytes to fall back to."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "removed"),
            pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "contiguous", invert=True),
            pre_tokenizers.Split(Regex("[A-Z]"), "merged_with_previous"),
            pre_tokenizers.Digits(individual_digits=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(["plain text of latin letters, and so on 123 4"], trainer)
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    each.__name__: each
    for each in (
        gpt2, llama3, qwen, gpt4o, deepseek, starcoder, llama2, mistral, metaspace, unknown,
    )
}  # fmt: skip


@cache
def family(name: str) -> Tokenizer:
    """The tokenizer of a family, trained once."""
    return FAMILIES[name]()
