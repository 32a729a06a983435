"""Varied lines that a browser's tokenizer is compared on: languages, code, numbers, spaces.

Made from a few seeds, always the same: what they share a thousand ordinary lines would not show
better, and what they do not (marks, joiners, line ends, white space that is none to some) is where
readers part.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_SEEDS: Final = (
    "The weather was clear that morning, so we walked to the harbour.",
    "It's 2024; they'll pay $1,234.56 -- and WE'VE won (again)!",
    "She said: \u201cDon't, I'd rather you weren't\u201d \u2026 \u2014 and left.",
    "def main(argv: list[str]) -> int:\n    return {'k': [1, 2]}.get(argv[0], 0)  # note",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\r\n",
    '<div class="x">&nbsp;</div> https://example.org/a_b?c=%20&d=[1,2]#e',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x';",
    "\\frac{\\partial f}{\\partial x} = \\sum_{i=0}^{n} x_i^2",
    "Größe, naïve café, señor, Łódź, İstanbul, ŞĞ, ﬁne ﬂow, ſ, K",
    "Ελληνικά γράμματα με τόνους και διαλυτικά: ΐ ΰ",
    "Русский текст: ёлка, объём, съёмка.",
    "日本語のテキスト。カタカナとひらがな、漢字。",
    "中文字符，标点符号；繁體中文。",
    "한국어 텍스트와 띄어쓰기",
    "نص عربي مع تشكيل: مُحَمَّد ١٢٣",
    "עברית עם ניקוד: שָׁלוֹם",
    "हिन्दी में पाठ: क्षत्रिय १२३",
    "ไทยไม่มีช่องว่าง ๑๒๓",
    "தமிழ் எழுத்து, తెలుగు, ಕನ್ನಡ",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ❤️ ✨",
    "½ ² ³ Ⅷ ① ٣ 𝟙𝟚𝟛 𝔘𝔫𝔦 ℵ ∑∫√ ≠ ≤ →",
    "   three leading spaces and two trailing  ",
    "tabs\tand\t\tmore,\u00a0no-break\u3000ideographic\u2009thin\u200bzero\ufeffmark",
    "\n\n  \n line after blank lines \r\n\r\n",
    "control \x00\x01\x1b\x1c\x1f\x7f\x85 characters",
    "e\u0301 composed é, a\u0308\u0323 ạ̈, \u1e9b\u0323 Å \u212b",
    "<s> </s> <unk> <0x0A> <|endoftext|> [INST] [/INST] <|im_start|>user",
    "▁ and Ġ and Ċ are characters, too: \u2581\u2581x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1000000000000000000001",
    "CamelCaseWords snake_case_words kebab-case-words ALLCAPS mIxEd",
    "1 22 333 4444 55555 0x1F 1e-10 3.14159 2024-05-17T10:00:00Z",
    "!!! ??? ... ,,, ;;; ::: --- ___ *** ### @@@ ~~~ ``` ''' \"\"\"",
)
_LONGEST_BEGINNING: Final = 5


def sample_lines() -> tuple[str, ...]:
    """A few hundred lines, each once."""
    lines: list[str] = ["", " ", "  ", "\n", "a", "A", "1"]
    for seed, other in zip(_SEEDS, (*_SEEDS[1:], _SEEDS[0]), strict=True):
        words = seed.split(" ")
        lines += [
            seed,
            f" {seed}",
            seed.upper(),
            seed.lower().replace(" ", "  "),
            unicodedata.normalize("NFD", seed),
            unicodedata.normalize("NFKC", seed),
            seed.replace(" ", "\n"),
            seed.replace(" ", ""),
            seed[::-1],
            f"{seed} {other}",
            " ".join(words[: len(words) // 2]) + other[:_LONGEST_BEGINNING],
        ]
    return tuple(dict.fromkeys(lines))
