"""OpenCL C kernels read strictly enough to be put into another kernel.

What is understood is the text of a code generator, or of a developer who writes as plainly: kernels
and nothing beside them, global pointers and scalars, one-dimensional local arrays, no macros. Any
other text is not an error: it is None, and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

GROUP: Final = "tapml_group"
"""The name that stands for a group's number where a body has been moved."""

_BYTES: Final = {
    "bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4,
    "float": 4, "long": 8, "ulong": 8, "double": 8,
}  # fmt: skip
_TYPE: Final = re.compile(rf"(?:{'|'.join(_BYTES)})(?:2|3|4|8|16)?")
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|//[^\n]*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)"
    r"|(?P<mark>[-+*/%&|^~!<>=?:;,.(){}\[\]])"
)
# A comment over lines, a line that goes on, other spellings of brackets: a reader that knows none
# of them must not meet one.
_UNREAD: Final = re.compile(r"/\*|\\|\?\?|%:|<%|%>|<:|:>|[^\x00-\x7f]")
# Lines before the first kernel. The macros are those of precise math; nothing else is renamed.
_ENABLING: Final = re.compile(
    r"#pragma OPENCL EXTENSION \w+ : enable|#if(def|ndef) \w+|#elif defined\(\w+\)|#else|#endif"
    r"|#error [^\n]*"
)
_MEANING: Final = re.compile(
    r"#pragma OPENCL FP_CONTRACT OFF|#undef (native|half)_\w+|#line 1"
    r"|#define (native|half)_\w+(\(\w+(, \w+)*\))? ((?!get_|tapml_)[\w() */])+"
)
_REFUSED: Final = frozenset(
    (
        "asm", "constant", "enum", "extern", "global", "goto", "image", "inline", "kernel", "local",
        "pipe", "printf", "private", "sampler_t", "sizeof", "static", "struct", "typedef", "union",
    )
)  # fmt: skip
_NUMBERED: Final = frozenset(("get_local_id", "get_local_size", "get_group_id"))
_AXES: Final = ("0", "1", "2")

_Token: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True)
class KernelParameter:
    """One parameter: all but its name as it was written, and its name."""

    declared: str
    name: str


@dataclass(frozen=True)
class LocalArray:
    """Memory that a group's threads share: ``__local type name[count];``."""

    type: str
    name: str
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        element = self.type.rstrip("0123456789")
        width = int(self.type.removeprefix(element) or 1)
        # Vectors of three take the room of four.
        return _BYTES[element] * (4 if width == 3 else width) * self.count


@dataclass(frozen=True)
class KernelText:
    """One kernel, taken apart.

    Attributes
    ----------
    prologue
        The lines before the first kernel, without comments.
    enabling_only
        Whether those do no more than enable extensions.
    parameters
        In order.
    local_arrays
        Declared at the top level of the body.
    """

    prologue: tuple[str, ...]
    enabling_only: bool
    parameters: tuple[KernelParameter, ...]
    local_arrays: tuple[LocalArray, ...]
    _pieces: tuple[str | int, ...]

    def body(self, axis: int) -> str:
        """The body without its local arrays, with :data:`GROUP` for the group along `axis`."""
        return "".join(
            piece
            if isinstance(piece, str)
            else GROUP
            if piece == axis
            else f"get_group_id({piece})"
            for piece in self._pieces
        )


def read_kernel(code: bytes, symbol: str) -> KernelText | None:
    """Take the kernel called `symbol` apart; None where anything of its module is not understood.

    Parameters
    ----------
    code
        The whole module.
    symbol
        The kernel's name in it.
    """
    try:
        text = code.decode("ascii")
        prologue, start = _prologue(text)
        tokens = list(_tokens(text, start))
        kernels = dict(_kernels(tokens))
        if symbol not in kernels:
            raise _NotUnderstoodError
        parameters, body = kernels[symbol]
        arrays, pieces = _body(text, body, kernels.keys())
        return KernelText(
            prologue=prologue,
            enabling_only=all(_ENABLING.fullmatch(line) for line in prologue),
            parameters=tuple(_parameter(text, each) for each in parameters),
            local_arrays=arrays,
            _pieces=pieces,
        )
    except (_NotUnderstoodError, UnicodeDecodeError):
        return None


class _NotUnderstoodError(Exception):
    """The text holds what this reader does not know."""


def _prologue(text: str) -> tuple[tuple[str, ...], int]:
    """The preprocessor's lines, and where the first other line begins."""
    lines: list[str] = []
    start = 0
    for line in text.splitlines(keepends=True):
        plain = line.strip(" \n")
        if plain.startswith("#"):
            if not _ENABLING.fullmatch(plain) and not _MEANING.fullmatch(plain):
                raise _NotUnderstoodError
            lines.append(plain)
        elif plain and not (plain.startswith("//") and not _UNREAD.search(plain)):
            break
        start += len(line)
    return tuple(lines), start


def _tokens(text: str, start: int) -> Iterator[_Token]:
    if _UNREAD.search(text, start):
        raise _NotUnderstoodError
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            raise _NotUnderstoodError
        if match.lastgroup != "space":
            yield match[0], start, match.end()
        start = match.end()


def _kernels(
    tokens: Sequence[_Token],
) -> Iterator[tuple[str, tuple[list[Sequence[_Token]], Sequence[_Token]]]]:
    """Name, parameters and body (its braces left out) of every kernel; prototypes are passed."""
    seen: set[str] = set()
    at = 0
    while at < len(tokens):
        if [token for token, _, _ in tokens[at : at + 2]] != ["__kernel", "void"]:
            raise _NotUnderstoodError
        name = _at(tokens, at + 2)
        if _at(tokens, at + 3) != "(":
            raise _NotUnderstoodError
        end = _closing(tokens, at + 3, "(", ")")
        parameters = list(_split(tokens[at + 4 : end]))
        if _at(tokens, end + 1) == ";":
            at = end + 2
            continue
        if _at(tokens, end + 1) != "{" or name in seen:
            raise _NotUnderstoodError
        seen.add(name)
        at = _closing(tokens, end + 1, "{", "}")
        yield name, (parameters, tokens[end + 2 : at])
        at += 1


def _at(tokens: Sequence[_Token], index: int) -> str:
    return tokens[index][0] if 0 <= index < len(tokens) else ""


def _closing(tokens: Sequence[_Token], start: int, opening: str, closing: str) -> int:
    depth = 0
    for index in range(start, len(tokens)):
        token = tokens[index][0]
        depth += (token == opening) - (token == closing)
        if depth == 0:
            return index
    raise _NotUnderstoodError


def _split(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    first = 0
    for index, (word, _, _) in enumerate(tokens):
        if word == ",":
            yield tokens[first:index]
            first = index + 1
    if first < len(tokens) or first:
        yield tokens[first:]


def _parameter(text: str, tokens: Sequence[_Token]) -> KernelParameter:
    words = [token for token, _, _ in tokens]
    kind = " ".join("TYPE" if _TYPE.fullmatch(word) else word for word in words[:-1])
    pointer = r"(const )?__global (const )?TYPE (const )?\*( restrict)?"
    if not re.fullmatch(rf"{pointer}|(const )?TYPE", kind):
        raise _NotUnderstoodError
    name, start, _ = tokens[-1]
    declared = text[tokens[0][1] : start].rstrip()
    # What is put behind a comment would be part of it.
    if not _plain_name(name) or _TYPE.fullmatch(name) or "//" in declared:
        raise _NotUnderstoodError
    return KernelParameter(declared, name)


def _plain_name(token: str) -> bool:
    """Whether a token is a name that means nothing to this reader or its writer."""
    return (
        (token[0].isalpha() or token[0] == "_")
        and not token.startswith(("tapml_", "__", "get_"))
        and token not in _REFUSED
    )


def _body(
    text: str, tokens: Sequence[_Token], kernels: Collection[str]
) -> tuple[tuple[LocalArray, ...], tuple[str | int, ...]]:
    """The local arrays, and the text around them and around the groups' numbers."""
    arrays: list[LocalArray] = []
    pieces: list[str | int] = []
    if not tokens:
        return (), ()
    written = tokens[0][1]
    depth = index = 0
    while index < len(tokens):
        word, start, _ = tokens[index]
        depth += (word == "{") - (word == "}")
        if depth < 0:
            raise _NotUnderstoodError
        if word == "__local":
            if _is_cast(tokens, index):
                index += 1
                continue
            if depth or _at(tokens, index - 1) not in ("", ";", "{", "}"):
                raise _NotUnderstoodError
            arrays.append(_array(tokens, index))
            pieces.append(text[written:start])
            index += 7
            written = tokens[index - 1][2]
            continue
        if word in _NUMBERED:
            axis = _axis(tokens, index)
            if word == "get_group_id":
                pieces += [text[written:start], axis]
                written = tokens[index + 3][2]
            index += 4
            continue
        if (word[0].isalpha() or word[0] == "_") and not (
            word == "__global" or (_plain_name(word) and word not in kernels)
        ):
            raise _NotUnderstoodError
        # A local array becomes a pointer: its address, as its size, would be another.
        addressed = _at(tokens, index - 1) == "&" and _at(tokens, index + 1) != "["
        if addressed and any(word == array.name for array in arrays):
            raise _NotUnderstoodError
        index += 1
    pieces.append(text[written : tokens[-1][2]])
    return tuple(arrays), tuple(pieces)


def _is_cast(tokens: Sequence[_Token], index: int) -> bool:
    """Whether ``__local`` at `index` is that of ``(volatile __local float*)``."""
    before = _at(tokens, index - 1)
    opens = before == "(" or (before == "volatile" and _at(tokens, index - 2) == "(")
    after = [_at(tokens, index + k) for k in (1, 2, 3)]
    return opens and bool(_TYPE.fullmatch(after[0])) and after[1:] == ["*", ")"]


def _array(tokens: Sequence[_Token], index: int) -> LocalArray:
    """``__local float name[64];`` at `index`."""
    kind, name, opening, count, closing, end = (_at(tokens, index + k) for k in range(1, 7))
    if (opening, closing, end) != ("[", "]", ";") or not re.fullmatch(r"[1-9]\d{0,6}", count):
        raise _NotUnderstoodError
    if not _TYPE.fullmatch(kind) or not name or not _plain_name(name) or _TYPE.fullmatch(name):
        raise _NotUnderstoodError
    return LocalArray(kind, name, int(count))


def _axis(tokens: Sequence[_Token], index: int) -> int:
    """The number in ``get_group_id(0)`` at `index`."""
    opening, axis, closing = (_at(tokens, index + k) for k in (1, 2, 3))
    if (opening, closing) != ("(", ")") or axis not in _AXES:
        raise _NotUnderstoodError
    return int(axis)
