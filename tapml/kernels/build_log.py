"""A driver's build log as messages about the developer's file, each with the line it speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# "1:3:5: error: text" and "my file.cl:3:5: error: text" (clang; what in_the_source writes, too),
# "error: /tmp/x.cl:3:5: text" (PoCL).
_FORMS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*(?:\S.*?:)??(?P<line>\d+):(?P<column>\d+): (?P<kind>(?:fatal )?error|warning|note): "
        r"(?P<text>.*)",
        r"\s*(?P<kind>(?:fatal )?error|warning|note): \S*?:(?P<line>\d+):(?P<column>\d+): "
        r"(?P<text>.*)",
    )
)
MOST: Final = 12
"""Messages that are shown of a log."""
# What compilers show of the source themselves.
_EXCERPT: Final = re.compile(r"\s*\d*\s+\|")


@dataclass(frozen=True)
class Message:
    """One message of a compiler: where in the source, from 1, and what it says."""

    line: int
    column: int
    kind: str
    text: str


def messages_of(log: str) -> list[Message]:
    """The messages in a build log that name a place, in order."""
    found = []
    for line in log.splitlines():
        for form in _FORMS:
            match = form.fullmatch(line.rstrip())
            if match is not None and not _EXCERPT.match(line):
                number, column = int(match["line"]), int(match["column"])
                found.append(Message(number, column, match["kind"], match["text"]))
                break
    return found


def in_the_source(log: str, source: Path, text: str) -> str:
    """A build log as the developer reads it: file, line and column, and the line itself.

    Parameters
    ----------
    log
        What the driver said, the platform's sentence first.
    source, text
        The file that was compiled, and what it held.
    """
    messages = messages_of(log)
    if not messages:
        return log.strip()
    lines = text.splitlines()
    shown = [log.splitlines()[0]]
    for message in messages[:MOST]:
        shown.append(f"{source}:{message.line}:{message.column}: {message.kind}: {message.text}")
        if 0 < message.line <= len(lines):
            plain = lines[message.line - 1].replace("\t", " ").rstrip()[:200]
            shown += [f"    {plain}", f"    {' ' * (message.column - 1)}^"]
    if len(messages) > MOST:
        shown.append(f"({len(messages) - MOST} more messages)")
    return "\n".join(shown)
