"""Compiled Libraries on disk: a second migration compiles nothing twice.

An entry is a SHA-256 and a packed Library in a file named by everything the result depends on. It
is written whole or not at all, checked when it is read, and a damaged one is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import tapml_targets
from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.codegen.source import OperatorSource
from tapml_targets.errors import ProtocolError
from tapml_targets.expression import render
from tapml_targets.library import Library
from tapml_targets.library_format import unpack
from tapml_targets.target import Target

DEFAULT_MAX_BYTES: Final = 512 << 20
_FORMAT: Final = "tapml-library-1"
_DIGEST_BYTES: Final = 32
_SUFFIX: Final = ".library"


class LibraryCache:
    """Packed Libraries by key; works without a disk, saying so once.

    Parameters
    ----------
    folder
        Where the files lie; default: ``libraries`` in the user's cache (``TAPML_CACHE_DIR``).
    max_bytes
        When the folder grows beyond this, the least recently used entries go.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._warned = False
        self._folder: Path | None = None
        self._bytes: int | None = None
        try:
            self._folder = cache_folder("libraries") if folder is None else folder
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._folder = None
            self._warn(error)

    def get(self, key: str) -> Library | None:
        """The Library under `key`; None if there is none or it is damaged, which removes it."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}{_SUFFIX}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        try:
            if hashlib.sha256(packed).digest() != digest:
                raise ProtocolError("the bytes are not those that were written")
            library = unpack(packed)
        except ProtocolError:
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return library

    def put(self, key: str, packed: bytes) -> None:
        """Keep a packed Library. A full disk costs the cache, not the compilation."""
        if self._folder is None:
            return
        data = hashlib.sha256(packed).digest() + packed
        try:
            write_atomically(self._folder / f"{key}{_SUFFIX}", data)
            self._evict(self._folder, len(data))
        except OSError as error:
            self._warn(error)

    def _evict(self, folder: Path, added: int) -> None:
        if self._bytes is not None:
            self._bytes += added
            if self._bytes <= self._max_bytes:
                return
        found = sorted((s.st_mtime, s.st_size, path) for path, s in _entries(folder))
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
                f"compiled kernels are not kept: {error}; free space or set TAPML_CACHE_DIR",
                RuntimeWarning,
                stacklevel=3,
            )


def _entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    entries = []
    for path in folder.glob(f"*{_SUFFIX}"):
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
        _versions(),
        _generator_hash(target.platform),
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
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def _versions() -> str:
    found = []
    for distribution in ("apache-tvm", "apache-tvm-ffi"):
        try:
            found.append(f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            found.append(f"{distribution} built here")
    return ", ".join(found)


@cache
def _generator_hash(platform: str) -> str:
    """Hash of our own code generators: a changed one must not serve what the old one wrote."""
    root = Path(tapml_targets.__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted((root / "codegen").glob("*.py")), root / platform / "codegen.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()
