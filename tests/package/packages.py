"""Packages of the finished tiny session, and ways to edit one."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tapml.package.make import make_package
from tapml.package.manifest import (
    MANIFEST,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Manifest,
    StoredFile,
    TokenizerNote,
)
from tests.offload.sessions import FinishedSession


@dataclass(frozen=True)
class Packages:
    """A folder and an archive of one session; tests copy them, never write them."""

    session: FinishedSession
    folder: Path
    archive: Path

    def copy(self, to: Path) -> Path:
        """A folder of one's own."""
        return Path(shutil.copytree(self.folder, to))

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the session's prompt."""
        return (1, 2, 3, 4)

    @property
    def tokens(self) -> list[int]:
        """What the target wrote for it at the session's end."""
        return list(self.session.report["final"]["prompts"][0]["tokens"])


def pack(session: FinishedSession, root: Path) -> Packages:
    """Package a session both ways."""
    folder = make_package(session.folder, root / "package").path
    archive = make_package(session.folder, root / "package.zip", archive=True).path
    return Packages(session, folder, archive)


def manifest_of(package: Path) -> Manifest:
    """What a package says of itself."""
    return Manifest.from_bytes((package / MANIFEST).read_bytes())


def put(package: Path, manifest: Manifest) -> None:
    """Write another manifest into a package."""
    (package / MANIFEST).write_bytes(manifest.to_bytes())


def exchange(package: Path, name: str, content: bytes) -> None:
    """Replace a file, or add one, in good order: with its size and hash."""
    (package / name).write_bytes(content)
    stored = StoredFile(len(content), hashlib.sha256(content).hexdigest())
    manifest = manifest_of(package)
    put(package, replace(manifest, files={**manifest.files, name: stored}))


CHAT = (
    "{% for message in messages %}{{ message.role[0] }}: {{ message.content }}/{% endfor %}a:"
    "{% if messages[0].role == 'refused' %}{{ raise_exception('no such role') }}{% endif %}"
)


def add_tokenizer(package: Path) -> None:
    """Give the tiny model a tokenizer, a token for every printable character of ASCII, and a chat.

    Its chat template is :data:`CHAT`.
    """
    vocabulary = {chr(32 + number): number for number in range(95)}
    text: dict[str, Any] = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    exchange(package, TOKENIZER, json.dumps(text).encode())
    exchange(package, TOKENIZER_CONFIG, json.dumps({"chat_template": CHAT}).encode())
    note = TokenizerNote("tokenizers", "the `tokenizers` library reads tokenizer.json")
    put(package, replace(manifest_of(package), tokenizer=note))
