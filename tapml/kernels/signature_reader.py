"""Finds a kernel's arguments in its source, in any language, without a parser of it.

What a :class:`~tapml_targets.kernel_language.KernelLanguage` does not describe is left to the
driver's compiler: then there is no signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from tapml.kernels.plain_text import PlainText, Token, closing_parenthesis, plain_text
from tapml.kernels.signature import ArgumentKind, Signature, SourceArgument
from tapml_targets.kernel_language import BindingSyntax, KernelLanguage, ParameterSyntax

_OPENING, _CLOSING = "([<", ")]>"
_NAME = re.compile(r"[A-Za-z_]\w*")
_ATTRIBUTE = re.compile(r"\[ \[ .*? \] \]")


def read_entries(language: KernelLanguage, source: str) -> list[str]:
    """Names of the kernels in a source, each once, in order."""
    text = plain_text(source, language).text
    return list(dict.fromkeys(found["name"] for found in re.finditer(language.entry, text)))


def read_signature(language: KernelLanguage, source: str, entry: str) -> Signature | None:
    """The arguments of the kernel called `entry`.

    Returns
    -------
    Signature or None
        None if there is no such kernel, or the language's description does not cover it.
    """
    plain = plain_text(source, language)
    kernels = [f for f in re.finditer(language.entry, plain.text) if f["name"] == entry]
    match language.arguments:
        case ParameterSyntax() as syntax:
            return _of_parameters(language, syntax, plain, entry, kernels)
        case BindingSyntax() as syntax:
            arguments = _of_bindings(language, syntax, plain) if kernels else None
            if arguments is None:
                return None
            declared = re.search(rf"\b{re.escape(entry)} \(", plain.text)
            at = declared.start() if declared else kernels[0].start("name")
            return Signature(entry, tuple(arguments), plain.line(at))
        case other:
            assert_never(other)


def _of_parameters(
    language: KernelLanguage,
    syntax: ParameterSyntax,
    plain: PlainText,
    entry: str,
    kernels: Sequence[re.Match[str]],
) -> Signature | None:
    """The kernel's definition; else the last of its declarations."""
    found: Signature | None = None
    for kernel in kernels:
        start = plain.index(kernel.end() - 1) + 1
        end = closing_parenthesis(plain.tokens, start)
        if end is None:
            break
        arguments = [
            argument
            for parameter in _split(plain.tokens[start:end])
            for argument in _parameter(language, syntax, plain, parameter)
        ]
        found = Signature(entry, tuple(arguments), plain.line(kernel.start("name")))
        if end + 1 < len(plain.tokens) and plain.tokens[end + 1].text == "{":
            break
    return found


def _split(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The parameters of a function."""
    depth = start = 0
    for at, token in enumerate(tokens):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text == "," and not depth:
            yield tokens[start:at]
            start = at + 1
    last = tokens[start:]
    if [token.text for token in last] not in ([], ["void"]):
        yield last


def _parameter(
    language: KernelLanguage, syntax: ParameterSyntax, plain: PlainText, tokens: Sequence[Token]
) -> Iterator[SourceArgument]:
    """The argument of a parameter: none if it is built in, several if it refers to a structure."""
    text = " ".join(token.text for token in tokens)
    if re.search(syntax.built_in, text):
        return
    words = _ATTRIBUTE.sub("", text).split()
    bare = [word for word in words if word not in syntax.qualifiers]
    pointer = "*" in bare or "[" in bare
    declarator = bare[: bare.index("[")] if "[" in bare else bare
    name = next((word for word in reversed(declarator) if _NAME.fullmatch(word)), "")
    kind: ArgumentKind = "scalar"
    if pointer:
        kind = "local" if re.search(syntax.shared, text) else "buffer"
    elif re.search(syntax.other, text):
        kind = "other"
    marks = [at for at, word in enumerate(bare) if word in ("*", "&")]
    spelled = " ".join(bare[: marks[0]] if marks else declarator[:-1])
    members = _structure(plain, spelled) if "&" in bare else None
    if members is not None:
        yield from _members(language, r"(?P<type>\w+) (?P<name>\w+) ;", frozenset(), members)
        return
    if pointer and (vector := re.fullmatch(syntax.vector, spelled)):
        spelled = vector["element"]
    constant = bool(re.search(syntax.constant, text))
    dtype = language.types.get(spelled, "")
    yield SourceArgument(name, kind, dtype, constant, plain.spelled(tokens))


def _of_bindings(
    language: KernelLanguage, syntax: BindingSyntax, plain: PlainText
) -> list[SourceArgument] | None:
    """The memory in the order of its places, then the numbers; None if some form is unknown."""
    memory = list(re.finditer(syntax.memory, plain.text))
    numbers = list(re.finditer(syntax.numbers, plain.text))
    if len(memory) + len(numbers) != len(re.findall(syntax.mark, plain.text)) or len(numbers) > 1:
        return None
    arguments = []
    for found in sorted(memory, key=lambda match: int(match["place"])):
        start, end = plain.index(found.start("text")), plain.index(found.end("text") - 1)
        spelled = plain.spelled(plain.tokens[start : end + 1])
        constant = bool(re.search(syntax.constant, found["text"]))
        dtype = language.types.get(found["type"] or "", "")
        arguments.append(SourceArgument(found["name"], "buffer", dtype, constant, spelled))
    for found in numbers:
        named = found.groupdict()
        members = named.get("members") or _structure(plain, named.get("struct") or "")
        if members is None:
            return None
        arguments += _members(language, syntax.member, syntax.filled, members)
    return arguments


def _structure(plain: PlainText, name: str) -> str | None:
    """The members of a structure as plain text."""
    found = re.search(rf"\bstruct {re.escape(name)} \{{([^{{}}]*)\}}", plain.text)
    return None if found is None else found[1]


def _members(
    language: KernelLanguage, member: str, filled: frozenset[str], text: str
) -> Iterator[SourceArgument]:
    for found in re.finditer(member, text):
        if found["name"] not in filled:
            dtype = language.types.get(found["type"], "")
            spelled = found[0].strip(" ;,")
            yield SourceArgument(found["name"], "scalar", dtype, True, spelled)
