"""RWKV's tokenizer: of the tokens that begin the rest of the text, the longest.

Its vocabulary is a text file, ``rwkv_vocab_v20230424.txt``, with a token in each line: its number,
a Python literal of text or of bytes, and its length in bytes (Peng et al., "Eagle and Finch").
Every single byte is a token, so every text has tokens.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Final

from tapml.models.text import FileCodec, encoded
from tapml_targets.errors import InputError

VOCABULARY: Final = "rwkv_vocab_v20230424.txt"
_MAX_TOKENS: Final = 1 << 20
_LONGEST_LINE: Final = 8192


class LongestMatch(FileCodec):
    """A tokenizer from the content of a vocabulary.

    Raises
    ------
    InputError
        Naming the first line that is no token, or a byte that has none.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._bytes: dict[int, bytes] = {}
        self._ids: dict[bytes, int] = {}
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            if line.strip():
                self._add(number, line)
        missing = next((each for each in range(256) if bytes([each]) not in self._ids), None)
        if missing is not None:
            raise InputError(
                f"no token is the byte 0x{missing:02x}: expected all 256; fetch {VOCABULARY} again"
            )
        # Lengths of the tokens that begin with a byte, longest first.
        lengths: dict[int, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}

    def _add(self, number: int, line: str) -> None:
        try:
            index, token = _read_line(line)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            index, token = -1, b""
        if not token or len(self._bytes) >= _MAX_TOKENS:
            raise InputError(
                f"line {number} is {line[:60]!r}: expected a number, a text or bytes as Python "
                f"writes them, and their length; fetch {VOCABULARY} again"
            )
        if index in self._bytes or token in self._ids:
            raise InputError(f"line {number} is {line[:60]!r}: its number or its token came before")
        self._bytes[index] = token
        self._ids[token] = index

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text. `special` changes nothing: no token begins a text.

        Raises
        ------
        InputError
            If the text contains half of a surrogate pair, which is not a character.
        """
        data = encoded(text)
        found, at = [], 0
        while at < len(data):
            length = next(
                each for each in self._lengths[data[at]] if data[at : at + each] in self._ids
            )
            found.append(self._ids[data[at : at + length]])
            at += length
        return tuple(found)

    def to_json_text(self) -> str:
        """The numbers and bytes for the page of a browser, which reads no literal of Python's."""
        tokens = [[number, token.hex()] for number, token in self._bytes.items()]
        return json.dumps({"longest_match": tokens}, separators=(",", ":"))

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of tokens; the end token and padding of the vocabulary have none."""
        data = b"".join(self._bytes.get(int(token), b"") for token in token_ids)
        return data.decode(errors="replace")


def _read_line(line: str) -> tuple[int, bytes]:
    """The number of a token and its bytes; none if the line is not one."""
    first, last = line.find(" "), line.rfind(" ")
    if not 0 < first < last or len(line) > _LONGEST_LINE:
        return -1, b""
    # A literal holds no name and no call: nothing in the file can run.
    value = ast.literal_eval(line[first:last].strip())
    token = value.encode() if isinstance(value, str) else value
    index = int(line[:first])
    if not isinstance(token, bytes) or index < 0 or len(token) != int(line[last:]):
        return -1, b""
    return index, token
