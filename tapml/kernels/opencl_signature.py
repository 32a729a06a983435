"""Finds a kernel and its arguments in OpenCL C, without a C parser.

Comments and string literals are blanked, macros are not expanded: what is written with macros or
typedefs is not judged here, and the driver's compiler has the last word.
"""

from __future__ import annotations

import re
from typing import Final

from tapml.kernels.signature import ArgumentKind, Signature, SourceArgument

OPENCL_OPTIONS: Final = {
    "exact-division": "float32 division and square root are rounded correctly, where offered",
    "fast-math": "the driver's relaxed mathematics",
    "no-optimiser": "the driver's compiler does not optimise",
}

_HIDDEN: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*\#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE
)
_ENTRY: Final = re.compile(r"\b(?:__kernel|kernel)\b[^;{}]*?\bvoid\s+(\w+)\s*\(")
_QUALIFIERS: Final = re.compile(
    r"\b(?:__global|global|__constant|constant|__local|local|__private|private|const|volatile"
    r"|restrict|__restrict|__restrict__|__read_only|read_only|__write_only|write_only|signed)\b"
)
_VECTOR: Final = re.compile(r"(2|3|4|8|16)$")
_DTYPES: Final = {
    "char": "int8",
    "uchar": "uint8",
    "unsigned char": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "unsigned short": "uint16",
    "int": "int32",
    "uint": "uint32",
    "unsigned int": "uint32",
    "unsigned": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "unsigned long": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
}
_NEVER_PASSED: Final = ("image", "sampler", "event_t", "queue_t", "pipe")


def read_opencl_entries(source: str) -> list[str]:
    """Names of the kernels in a source, each once, in order."""
    return list(dict.fromkeys(_ENTRY.findall(_HIDDEN.sub(_blank, source))))


def read_opencl_signature(source: str, entry: str) -> Signature | None:
    """The kernel called `entry`; None where no ``__kernel void entry(...)`` can be read."""
    plain = _HIDDEN.sub(_blank, source)
    kernel = re.compile(
        r"\b(?:__kernel|kernel)\b(?:\s*__attribute__\s*\(\(.*?\)\)\s*\))?[\w\s,()*]*?"
        rf"\bvoid\s+(?:__attribute__\s*\(\(.*?\)\)\s*\)\s*)?{re.escape(entry)}\s*\("
    )
    declared: Signature | None = None
    for found in kernel.finditer(plain):
        inside = _until_closed(plain, found.end())
        if inside is None:
            return declared
        line = plain.count("\n", 0, found.end()) + 1
        texts = [text.strip() for text in inside.split(",")]
        if texts in ([""], ["void"]):
            texts = []
        declared = Signature(entry, tuple(_argument(text) for text in texts), line)
        if plain[found.end() + len(inside) + 1 :].lstrip().startswith("{"):
            break
    return declared


def _blank(found: re.Match[str]) -> str:
    """The same lines, empty."""
    return re.sub(r"[^\n]", " ", found.group())


def _until_closed(text: str, start: int) -> str | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return text[start:position]
    return None


def _argument(text: str) -> SourceArgument:
    words = set(re.findall(r"\w+", text))
    bare = " ".join(_QUALIFIERS.sub(" ", text).replace("*", " * ").split())
    pointer = "*" in bare or "[" in bare
    name_found = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)?$", bare)
    name = name_found.group(1) if name_found else ""
    kind: ArgumentKind = "scalar"
    if pointer:
        kind = "local" if words & {"__local", "local"} else "buffer"
    elif bare.startswith(_NEVER_PASSED):
        kind = "other"
    kept = bare.partition("*")[0] if pointer else bare.removesuffix(name)
    written = " ".join(kept.split())
    if pointer:
        written = _VECTOR.sub("", written)
    constant = bool(words & {"__constant", "constant"}) or "const" in text.partition("*")[0].split()
    return SourceArgument(name, kind, _DTYPES.get(written, ""), constant, " ".join(text.split()))
