"""Compiled code on disk: a second migration compiles nothing twice.

A file is named by everything its content depends on. It is written whole or not at all, checked
when it is read, and a damaged one is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import tapml_targets
from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import ProtocolError
from tapml_targets.expression import render
from tapml_targets.installed import compiler_versions
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.target import Target

DEFAULT_MAX_BYTES: Final = 512 << 20
_FORMAT: Final = "tapml-library-1"
_DIGEST_BYTES: Final = 32
_SOURCES: Final = frozenset({".py", ".wgsl"})


class DiskCache:
    """Files by key, each followed by its SHA-256; works without a disk, saying so once.

    The digest stands at the end so that a shared object is loadable where it lies.

    Parameters
    ----------
    kind
        Name of the folder in the user's cache (``TAPML_CACHE_DIR``).
    folder
        Another folder.
    suffix
        Ending of the files' names.
    max_bytes
        When the folder grows beyond this, the least recently used entries go.
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
        """Keep `data`. A full disk costs the cache, not the caller."""
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
        """Forget what is under `key`."""
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
                f"compiled code is not kept: {error}; free space or set TAPML_CACHE_DIR",
                RuntimeWarning,
                stacklevel=3,
            )


class LibraryCache:
    """Packed Libraries on disk; an entry that is no Library any more is removed."""

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
        """The bytes under `key`, as they were kept, or None."""
        return self._disk.get(key)

    def remove(self, key: str) -> None:
        """Forget what is under `key`."""
        self._disk.remove(key)

    def put(self, key: str, packed: bytes) -> None:
        """Keep a packed Library."""
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
    """Everything a compilation depends on, as one hexadecimal number."""
    limits = target.limits
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
        *(f"{name}={value}" for name, value in target.options),
        f"{limits.max_threads_per_block} {limits.max_shared_memory_bytes}",
        # What is cut into segments only: any other kernel is the same whatever a binding holds.
        *(
            f"{p.name} {limits.max_binding_bytes} {limits.offset_alignment}"
            for p in source.parameters
            if p.known_bytes > limits.max_binding_bytes > 0
        ),
    ]
    return joint_hash(parts)


def joint_hash(parts: Iterable[str]) -> str:
    """One hexadecimal number for texts in order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def generator_hash(platform: str) -> str:
    """Hash of our own code generators: a changed one must not serve what the old one wrote."""
    root = Path(tapml_targets.__file__).parent
    digest = hashlib.sha256()
    shared, own = (root / "codegen").glob("*.py"), (root / platform).rglob("*")
    # Kernels written by hand lie beside the code that chooses among them.
    sources = (path for path in own if path.suffix in _SOURCES)
    for path in (*sorted(shared), *sorted(sources)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
