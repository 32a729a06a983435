"""Converts a driver's build log to messages about the developer's file, with source lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tapml_targets.kernel_language import CLANG_MESSAGE
from tapml_targets.platforms import language_of_dialect

MOST: Final = 12
"""Limit on the messages shown of a log."""
# Source excerpts that compilers print.
_EXCERPT: Final = re.compile(r"\s*\d*\s+\|")


@dataclass(frozen=True)
class Message:
    """One message of a compiler, with its position in the source, from 1; column 0: not said."""

    line: int
    column: int
    kind: str
    text: str


def messages_of(log: str, dialect: str) -> list[Message]:
    """The messages about a module in a build log that have a position, in order.

    Parameters
    ----------
    log
        What a driver said, or :func:`in_the_source` made of it.
    dialect
        Of the module; its language says how compilers write messages.
    """
    found: list[Message] = []
    end = 0
    for match in sorted(
        (match for form in _forms(dialect) for match in form.finditer(log)),
        key=lambda each: (each.start(), -each.end()),
    ):
        if match.start() < end or _EXCERPT.match(match[0]):
            continue
        end = match.end()
        column = int(match.groupdict().get("column") or 0)
        kind = match["kind"].lower()
        found.append(Message(int(match["line"]), column, kind, match["text"].rstrip()))
    return found


@cache
def _forms(dialect: str) -> tuple[re.Pattern[str], ...]:
    language = language_of_dialect(dialect)
    # Also what in_the_source writes.
    forms = (CLANG_MESSAGE, *(language.messages if language else ()))
    return tuple(re.compile(f"^{form}$", re.MULTILINE) for form in dict.fromkeys(forms))


def in_the_source(log: str, source: Path, text: str, dialect: str) -> str:
    """A build log in terms of the developer's file: file, line and column, and the line's text.

    Parameters
    ----------
    log
        The platform's sentence, then the driver's output.
    source, text
        The compiled file and its content.
    dialect
        Of its module.
    """
    messages = messages_of(log, dialect)
    if not messages:
        return log.strip()
    lines = text.splitlines()
    shown = [log.splitlines()[0]]
    for message in messages[:MOST]:
        place = f"{message.line}:{message.column}" if message.column else f"{message.line}"
        shown.append(f"{source}:{place}: {message.kind}: {message.text}")
        if 0 < message.line <= len(lines):
            plain = lines[message.line - 1].replace("\t", " ").rstrip()[:200]
            shown.append(f"    {plain}")
            if message.column:
                shown.append(f"    {' ' * (message.column - 1)}^")
    if len(messages) > MOST:
        shown.append(f"({len(messages) - MOST} more messages)")
    return "\n".join(shown)
