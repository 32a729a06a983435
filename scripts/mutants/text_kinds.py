"""Three kinds of mistake in any kernel language, found in its text: no parser is needed for them.

What a barrier and an exchange between the threads of a wave are called, the platform's kernel
language says as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scripts.mutants.site import Edit
from tapml_targets.kernel_language import KernelLanguage

BARRIER = "dropped barrier"
INDEX = "index shift"
WAVE = "halved wave"
TEXT_KINDS = (BARRIER, INDEX, WAVE)


def text_edits(text: str, symbols: list[str], language: KernelLanguage) -> dict[str, list[Edit]]:
    """The edits of each kind in the kernels of a module.

    Parameters
    ----------
    text
        The module's source.
    symbols
        Names of its kernels.
    language
        The source's language.
    """
    found: dict[str, list[Edit]] = {kind: [] for kind in TEXT_KINDS}
    for symbol in symbols:
        begin, end = _body(text, symbol)
        found[BARRIER] += _dropped(text, symbol, begin, end, language)
        found[INDEX] += _shifted(text, symbol, begin, end)
        found[WAVE] += _halved(text, symbol, begin, end, language)
    return found


def _dropped(
    text: str, symbol: str, begin: int, end: int, language: KernelLanguage
) -> Iterator[Edit]:
    """Threads no longer wait for each other."""
    call = re.compile(rf"(?:{language.barrier})\s*\([^;]*\)\s*;")
    for match in call.finditer(text, begin, end):
        yield Edit("no barrier", symbol, match.start(), match.end(), ";")


def _shifted(text: str, symbol: str, begin: int, end: int) -> Iterator[Edit]:
    """The neighbour of the right element is read or written."""
    # A word before the name makes it the declaration of an array.
    for match in re.compile(r"\b[A-Za-z_]\w*\[(?!\[)").finditer(text, begin, end):
        before = text[: match.start()].rstrip()
        if before and (before[-1].isalnum() or before[-1] in "_>"):
            continue
        closing = _closing(text, match.end() - 1)
        subscript = text[match.end() : closing]
        for rule, step in (("one further", "+ 1"), ("one before", "- 1")):
            yield Edit(rule, symbol, match.end(), closing, f"({subscript}) {step}")


def _halved(
    text: str, symbol: str, begin: int, end: int, language: KernelLanguage
) -> Iterator[Edit]:
    """The half of a wave that is furthest away adds nothing."""
    step = r"(?:u\w+\()?(?P<step>\d+)[iu]?\b"
    call = re.compile(rf"= (?P<call>(?P<name>{language.exchange})\([^;]*?, {step}[^;]*\));")
    found = [each for each in call.finditer(text, begin, end) if "down" in each["name"].lower()]
    half = max((int(each["step"]) for each in found), default=0)
    for match in found:
        if int(match["step"]) == half:
            yield Edit("half the wave", symbol, match.start("call"), match.end("call"), "0")


def _body(text: str, symbol: str) -> tuple[int, int]:
    """Where the kernel's body begins and ends."""
    head = re.search(rf"\b{symbol}\s*\([^;{{}}]*\)\s*\{{", text)
    if head is None:
        return 0, 0
    return head.end(), _closing(text, head.end() - 1)


def _closing(text: str, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    pairs = {"[": "]", "{": "}"}
    mark, depth = text[opening], 0
    for place in range(opening, len(text)):
        if text[place] == mark:
            depth += 1
        elif text[place] == pairs[mark]:
            depth -= 1
            if not depth:
                return place
    return len(text)
