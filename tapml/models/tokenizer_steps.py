"""What a tokenizer does around its model: normalize, split into words, turn tokens into text.

Each step of a ``tokenizer.json`` becomes a function; the order and the meaning are those of the
``tokenizers`` library. A step that is not known here is refused by name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tapml.models.tokenizer_pattern import WHITE_SPACE, class_text, compile_pattern, ranges_of
from tapml_targets.errors import InputError


class Piece(NamedTuple):
    """A part of the text; `first` where it begins the text."""

    text: str
    first: bool


Normalizer: TypeAlias = Callable[[str], str]
Splitter: TypeAlias = Callable[[Piece], list[Piece]]
Decoder: TypeAlias = Callable[[list[str]], list[str]]
Behavior: TypeAlias = Literal[
    "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"
]
_BEHAVIORS: Final = ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")

# GPT-2's words, as the library's ByteLevel step has them built in.
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>", re.ASCII)
_MISSING: Final = "\N{REPLACEMENT CHARACTER}"


def _byte_characters() -> tuple[str, ...]:
    """A printable character for each byte, GPT-2's: itself where it is printable Latin-1."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


_CHARACTER_OF: Final = _byte_characters()
_BYTE_OF: Final = {character: byte for byte, character in enumerate(_CHARACTER_OF)}


def normalizer(data: Mapping[str, Any] | None) -> Normalizer:
    """The normalizer that an entry describes; None leaves text as it is.

    Raises
    ------
    InputError
        If it is of a kind that is not supported.
    """
    if data is None:
        return lambda text: text
    match data.get("type"):
        case "NFC" | "NFD" | "NFKC" | "NFKD" as form:
            return lambda text: unicodedata.normalize(form, text)
        case "Prepend":
            start = _text(data, "prepend")
            return lambda text: start + text if text else text
        case "Replace":
            pattern, content = _pattern(data), _text(data, "content")
            return lambda text: pattern.sub(lambda _: content, text)
        case "Strip":
            return _stripping(_flag(data, "strip_left"), _flag(data, "strip_right"))
        case "Sequence":
            steps = [normalizer(each) for each in _entries(data, "normalizers")]

            def run(text: str) -> str:
                for step in steps:
                    text = step(text)
                return text

            return run
    raise _unsupported("normalizer", data)


def splitter(data: Mapping[str, Any] | None) -> Splitter:
    """The pre-tokenizer that an entry describes; None leaves a piece whole.

    Raises
    ------
    InputError
        If it is of a kind that is not supported.
    """
    if data is None:
        return lambda piece: [piece]
    match data.get("type"):
        case "ByteLevel":
            return _byte_level(data)
        case "Metaspace":
            return _metaspace(data)
        case "Split":
            pattern, invert = _pattern(data), _flag(data, "invert")
            behavior = _text(data, "behavior")
            if behavior not in _BEHAVIORS:
                raise _unsupported(f"behavior {behavior[:40]!r} of the pre-tokenizer", data)
            return lambda piece: _split(piece, pattern, behavior, invert=invert)  # type: ignore[arg-type]
        case "Digits":
            digits = re.compile(class_text(ranges_of("N")))
            how: Behavior = "Isolated" if _flag(data, "individual_digits") else "Contiguous"
            return lambda piece: _split(piece, digits, how)
        case "Sequence":
            steps = [splitter(each) for each in _entries(data, "pretokenizers")]

            def run(piece: Piece) -> list[Piece]:
                pieces = [piece]
                for step in steps:
                    pieces = [part for each in pieces for part in step(each) if part.text]
                return pieces

            return run
    raise _unsupported("pre-tokenizer", data)


def decoder(data: Mapping[str, Any] | None) -> Decoder:
    """The decoder that an entry describes; without one, tokens are joined with spaces.

    Raises
    ------
    InputError
        If it is of a kind that is not supported.
    """
    if data is None:
        return lambda tokens: [" ".join(tokens)]
    match data.get("type"):
        case "ByteLevel":
            return lambda tokens: [b"".join(map(_bytes_of, tokens)).decode(errors="replace")]
        case "Metaspace":
            return _metaspace_decoder(data)
        case "Replace":
            pattern, content = _pattern(data), _text(data, "content")
            return lambda tokens: [pattern.sub(lambda _: content, token) for token in tokens]
        case "ByteFallback":
            return _join_bytes
        case "Fuse":
            return lambda tokens: ["".join(tokens)]
        case "Strip":
            content, start, stop = _text(data, "content"), data.get("start"), data.get("stop")
            if not isinstance(start, int) or not isinstance(stop, int) or len(content) != 1:
                raise _unsupported("decoder", data)
            return lambda tokens: [_cut(token, content, start, stop) for token in tokens]
        case "Sequence":
            steps = [decoder(each) for each in _entries(data, "decoders")]

            def run(tokens: list[str]) -> list[str]:
                for step in steps:
                    tokens = step(tokens)
                return tokens

            return run
    raise _unsupported("decoder", data)


def _byte_level(data: Mapping[str, Any]) -> Splitter:
    prefix = _flag(data, "add_prefix_space", default=True)
    words = compile_pattern(GPT2_PATTERN) if _flag(data, "use_regex", default=True) else None

    def run(piece: Piece) -> list[Piece]:
        if prefix and not piece.text.startswith(" "):
            piece = Piece(f" {piece.text}", piece.first)
        pieces = [piece] if words is None else _split(piece, words, "Isolated")
        return [
            Piece("".join(_CHARACTER_OF[byte] for byte in each.text.encode()), each.first)
            for each in pieces
        ]

    return run


def _metaspace(data: Mapping[str, Any]) -> Splitter:
    mark, scheme = _metaspace_settings(data)
    words = re.compile(re.escape(mark)) if _flag(data, "split", default=True) else None

    def run(piece: Piece) -> list[Piece]:
        text = piece.text.replace(" ", mark)
        wanted = scheme == "always" or (scheme == "first" and piece.first)
        if wanted and not text.startswith(mark):
            text = mark + text
        piece = Piece(text, piece.first)
        return [piece] if words is None else _split(piece, words, "MergedWithNext")

    return run


def _metaspace_decoder(data: Mapping[str, Any]) -> Decoder:
    mark, scheme = _metaspace_settings(data)
    start = " " if scheme == "never" else ""

    def run(tokens: list[str]) -> list[str]:
        return [
            token.replace(mark, start if index == 0 else " ") for index, token in enumerate(tokens)
        ]

    return run


def _metaspace_settings(data: Mapping[str, Any]) -> tuple[str, str]:
    mark, scheme = _text(data, "replacement"), data.get("prepend_scheme", "always")
    if data.get("add_prefix_space") is False:
        scheme = "never"
    if len(mark) != 1 or scheme not in ("always", "first", "never"):
        raise _unsupported("step", data)
    return mark, scheme


def _split(
    piece: Piece, pattern: re.Pattern[str], behavior: Behavior, *, invert: bool = False
) -> list[Piece]:
    """Cut at every match; what becomes of the matches is the behavior."""
    text = piece.text
    parts: list[tuple[int, int, bool]] = []
    end = 0
    for match in pattern.finditer(text):
        # No empty match right behind another: Oniguruma goes on a character further.
        if match.end() == match.start() == end and parts:
            continue
        if match.start() > end:
            parts.append((end, match.start(), invert))
        parts.append((match.start(), match.end(), not invert))
        end = match.end()
    if end < len(text):
        parts.append((end, len(text), invert))
    spans = _arranged(parts, behavior)
    return [Piece(text[start:stop], piece.first and start == 0) for start, stop in spans]


def _arranged(parts: list[tuple[int, int, bool]], behavior: Behavior) -> list[tuple[int, int]]:
    if behavior == "Isolated":
        return [(start, end) for start, end, _ in parts]
    if behavior == "Removed":
        return [(start, end) for start, end, matched in parts if not matched]
    backwards = behavior == "MergedWithNext"
    spans: list[tuple[int, int]] = []
    before = False
    for start, end, matched in reversed(parts) if backwards else parts:
        joins = matched == before if behavior == "Contiguous" else matched and not before
        if joins and spans:
            spans[-1] = (start, spans[-1][1]) if backwards else (spans[-1][0], end)
        else:
            spans.append((start, end))
        before = matched
    return spans[::-1] if backwards else spans


def _stripping(left: bool, right: bool) -> Normalizer:
    space = class_text(WHITE_SPACE)
    ends = re.compile("|".join([f"^{space}+"] * left + [f"{space}+\\Z"] * right) or r"(?!)")
    return lambda text: ends.sub("", text)


def _bytes_of(token: str) -> bytes:
    """Bytes that a byte-level token stands for; its own where it holds any other character."""
    found = [_BYTE_OF.get(character) for character in token]
    known = bytes(each for each in found if each is not None)
    return known if len(known) == len(found) else token.encode()


def _join_bytes(tokens: list[str]) -> list[str]:
    """Text for each run of byte tokens; a replacement character for each where it is none."""
    found: list[str] = []
    run: list[int] = []

    def end_run() -> None:
        if run:
            try:
                found.append(bytes(run).decode())
            except UnicodeDecodeError:
                found.extend([_MISSING] * len(run))
            run.clear()

    for token in tokens:
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is not None:
            run.append(int(byte[1], 16))
        else:
            end_run()
            found.append(token)
    end_run()
    return found


def _cut(token: str, content: str, start: int, stop: int) -> str:
    """Without up to `start` leading and `stop` trailing characters that are `content`."""
    first = 0
    while first < min(start, len(token)) and token[first] == content:
        first += 1
    last = len(token)
    while last > max(first, len(token) - stop) and token[last - 1] == content:
        last -= 1
    return token[first:last]


def _pattern(data: Mapping[str, Any]) -> re.Pattern[str]:
    match data.get("pattern"):
        case {"String": str(text)}:
            return re.compile(re.escape(text))
        case {"Regex": str(text)}:
            return compile_pattern(text)
    raise InputError(f"a step of kind {str(data.get('type'))[:40]} has no pattern")


def _entries(data: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    value = data.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"a step of kind Sequence has no list of {key}")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise InputError(f"a step of kind {str(data.get('type'))[:40]} has no text {key}")
    return value


def _flag(data: Mapping[str, Any], key: str, *, default: bool | None = None) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"a step of kind {str(data.get('type'))[:40]} has no flag {key}")
    return value


def _unsupported(what: str, data: Mapping[str, Any]) -> InputError:
    return InputError(f"the {what} {str(data.get('type'))[:40]!r} is not supported")
