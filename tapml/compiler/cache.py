"""Compiled code on disk, so that a second migration compiles nothing.

A file's name is a hash of everything its content depends on. Files are written atomically and
checked when read; a damaged one is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from platform import machine
from typing import Final

import tapml_targets
from tapml.compiler.generator_imports import imported_sources
from tapml_targets import library_format
from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import ProtocolError
from tapml_targets.expression import render
from tapml_targets.installed import compiler_versions
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_folder
from tapml_targets.target import Target

DEFAULT_MAX_BYTES: Final = 512 << 20
_FORMAT: Final = f"tapml-library-{library_format.VERSION}"
_DIGEST_BYTES: Final = 32
# The amount of memory affects no kernel; every other limit may affect what is generated.
_MEMORY_AMOUNTS: Final = frozenset({"memory_bytes", "max_buffer_bytes"})


class DiskCache:
    """Files by key, each followed by its SHA-256; without a disk it warns once and caches nothing.

    The digest is at the end so that a shared object can be loaded directly from its file.

    Parameters
    ----------
    kind
        Name of the folder in the user's cache (``TAPML_CACHE_DIR``).
    folder
        Overrides that folder.
    suffix
        Suffix of the file names.
    max_bytes
        Above this size the least recently used entries are evicted.
    """

    def __init__(
        self,
        kind: str,
        folder: Path | None = None,
        *,
        suffix: str,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._max_bytes = max_bytes
        self._suffix = suffix
        self._warned = False
        self._folder: Path | None = None
        self._bytes: int | None = None
        try:
            self._folder = cache_folder(kind) if folder is None else folder
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._folder = None
            self._warn(error)

    def file(self, key: str) -> Path | None:
        """The file under `key`; None if there is none or it is damaged, which removes it."""
        return self._path(key) if self.get(key) is not None else None

    def get(self, key: str) -> bytes | None:
        """The data under `key`; None if there is none or it is damaged, which removes it."""
        path = self._path(key)
        if path is None:
            return None
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        data, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data`; a full disk is not an error."""
        path = self._path(key)
        if path is None:
            return
        stored = data + hashlib.sha256(data).digest()
        try:
            write_atomically(path, stored)
            self._evict(path.parent, len(stored))
        except OSError as error:
            self._warn(error)

    def remove(self, key: str) -> None:
        """Remove an entry."""
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{key}{self._suffix}"

    def _evict(self, folder: Path, added: int) -> None:
        if self._bytes is not None:
            self._bytes += added
            if self._bytes <= self._max_bytes:
                return
        entries = _entries(folder, self._suffix)
        found = sorted((s.st_mtime, s.st_size, path) for path, s in entries)
        self._bytes = sum(size for _, size, _ in found)
        for _, size, path in found:
            if self._bytes <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            self._bytes -= size

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"compiled code is not cached: {error}; free space or set TAPML_CACHE_DIR",
                RuntimeWarning,
                stacklevel=3,
            )


class LibraryCache:
    """Packed Libraries on disk; an entry that is not a valid Library is removed."""

    def __init__(self, folder: Path | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._disk = DiskCache("libraries", folder, suffix=".library", max_bytes=max_bytes)

    def get(self, key: str) -> Library | None:
        """The Library under `key`, or None."""
        packed = self.get_packed(key)
        if packed is None:
            return None
        try:
            return unpack(packed)
        except ProtocolError:
            self._disk.remove(key)
            return None

    def get_packed(self, key: str) -> bytes | None:
        """The stored bytes under `key`, or None."""
        return self._disk.get(key)

    def remove(self, key: str) -> None:
        """Remove an entry."""
        self._disk.remove(key)

    def put(self, key: str, packed: bytes) -> None:
        """Store a packed Library."""
        self._disk.put(key, packed)


def _entries(folder: Path, suffix: str) -> list[tuple[Path, os.stat_result]]:
    entries = []
    for path in folder.glob(f"*{suffix}"):
        try:
            entries.append((path, path.stat()))
        except FileNotFoundError:
            continue  # another process evicted it
    return entries


def library_key(source: OperatorSource, target: Target) -> str:
    """Hexadecimal hash of everything a compilation depends on."""
    parts = [
        _FORMAT,
        compiler_versions(),
        generator_hash(target.platform),
        source.name,
        source.function,
        *(
            f"{p.name} {p.dtype} {p.role} {' '.join(render(extent) for extent in p.shape)}"
            for p in source.parameters
        ),
        *source.symbols,
        target.platform,
        # Some generators make code for the machine that they run on.
        machine(),
        *(f"{name}={value}" for name, value in target.options),
        *_limit_texts(target.limits),
    ]
    return joint_hash(parts)


def _limit_texts(limits: Limits) -> Iterable[str]:
    for field in fields(limits):
        if field.name not in _MEMORY_AMOUNTS:
            value = getattr(limits, field.name)
            yield f"{field.name}={sorted(value) if isinstance(value, frozenset) else value}"


def joint_hash(parts: Iterable[str]) -> str:
    """Hexadecimal hash of texts in order."""
    return _digest(part.encode() for part in parts)


@cache
def generator_hash(platform: str) -> str:
    """Hash of our code generators: a changed one must not reuse the output of the old one.

    Those are the shared ones, every file of the platform's folder, and what its generator imports
    of tapml's targets besides.
    """
    root, folder = Path(tapml_targets.__file__).parent, platform_folder(platform)
    shared = root / "codegen"
    # Where another distribution's generator is in its package, nobody knows.
    own = sorted(folder.rglob("*.py")) if folder.parent != root else _generator(folder)
    hashed = sources_hash(shared, folder).encode()
    imported = imported_sources([*sorted(shared.rglob("*.py")), *own], {root.name: root})
    further = (each for each in imported if not {shared, folder} & set(each.parents))
    named = ((each.relative_to(root).as_posix().encode(), each.read_bytes()) for each in further)
    return _digest((hashed, *(part for pair in named for part in pair)))


def _generator(folder: Path) -> list[Path]:
    own = folder / "codegen"
    return sorted(own.rglob("*.py")) if own.is_dir() else [folder / "codegen.py"]


def sources_hash(*folders: Path) -> str:
    """Hash of every file below `folders`, in any language, except Python's bytecode."""
    parts = (
        part
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes())
    )
    return _digest(parts)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
