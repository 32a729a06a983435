"""The text the zoo's model is trained on: prose of ``pydoc_data.topics``, pinned by hash."""

from __future__ import annotations

import hashlib
import platform
import pydoc_data.topics
import re
import sys
from dataclasses import dataclass

CORPUS_PYTHON = "3.11.7"
CORPUS_SHA256 = "71f2ff5d99bdc1f9c48c5c2353ad138201c5ca1c377e0226857ef8fa89b8bcee"
WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")


@dataclass(frozen=True)
class Corpus:
    """The prose, one string per topic, and the paragraphs held out of it."""

    training: tuple[str, ...]
    validation: tuple[str, ...]


def corpus_text() -> str:
    """Every topic of pydoc, in the order of their names."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def check_corpus() -> None:
    """Stop with a clear message where this Python ships another text."""
    found = hashlib.sha256(corpus_text().encode()).hexdigest()
    if found != CORPUS_SHA256:
        sys.exit(
            f"train_zoo: the corpus is pydoc_data.topics of Python {CORPUS_PYTHON} "
            f"(sha256 {CORPUS_SHA256[:12]}); this is Python {platform.python_version()} "
            f"(sha256 {found[:12]}). Run this script with Python {CORPUS_PYTHON}."
        )


def is_prose(paragraph: str) -> bool:
    """Sentences, rather than code, grammar, tables and headings."""
    words = WORD.findall(paragraph)
    letters = sum(character.isalpha() or character.isspace() for character in paragraph)
    return (
        len(words) >= 8
        and letters >= 0.78 * len(paragraph)
        and paragraph.rstrip()[-1:] in ".:!?)"
        and "::=" not in paragraph
        and ">>>" not in paragraph
    )


def read_corpus() -> Corpus:
    """Split the prose into training topics and held-out paragraphs, duplicates dropped first."""
    seen: set[str] = set()
    training: list[str] = []
    validation: list[str] = []
    topics = pydoc_data.topics.topics
    for name in sorted(topics):
        kept: list[str] = []
        for block in topics[name].split("\n\n"):
            paragraph = " ".join(block.split())
            if paragraph in seen or not paragraph or not is_prose(paragraph):
                continue
            seen.add(paragraph)
            # The split depends on the paragraph alone, so no other paragraph can move it.
            digest = hashlib.sha256(paragraph.encode()).digest()
            (validation if digest[0] < 16 else kept).append(paragraph)
        if kept:
            training.append("\n".join(kept))
    return Corpus(tuple(training), tuple(validation))


def words(text: str) -> list[str]:
    """Words of a text, case folded."""
    return [word.casefold() for word in WORD.findall(text)]
